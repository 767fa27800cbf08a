"""From the bytes of a clip to its place in a batch; a decoder that hangs is left behind.

A thread inside a codec cannot be stopped. One that exceeds its time is abandoned: another takes
its place, the clip is made anew (or another one in its place), and whatever the old thread still
writes goes into memory that no batch uses any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dstream.clock import Clock
from dstream.errors import MediaError, MediaReason
from dstream.format.index import VideoIndex
from dstream.loader.fetch_stage import FetchStage
from dstream.loader.reader import ClipReader, ReadClip, ids_of
from dstream.loader.shared import GroupPlan, Sharing
from dstream.loader.work import Fetched, Task, Work
from dstream.measure.laps import Laps
from dstream.measure.spans import SpanStage
from dstream.media.clip import ClipPlan
from dstream.media.decode import Bytes, ClipDecoder, DecodedClip, Wanted
from dstream.media.decoders.selection import DecoderChoice


class _WatchedDecoder(ClipDecoder):
    """Knows since when it has been inside the codec."""

    def __init__(self, reader: ClipReader, clock: Clock, choice: DecoderChoice) -> None:
        super().__init__(reader.settings.pixels, reader.meter, clock=clock, choice=choice)
        self._time = clock
        self.since_s: float | None = None

    def decode_many(
        self, index: VideoIndex, plan: ClipPlan, data: Sequence[Bytes], clips: Sequence[Wanted]
    ) -> list[DecodedClip]:
        """As :meth:`ClipDecoder.decode_many`, which every decode goes through."""
        self.since_s = self._time.monotonic_s()
        try:
            return super().decode_many(index, plan, data, clips)
        finally:
            self.since_s = None


@dataclass(slots=True, eq=False)
class _Worker:
    """One decoding thread."""

    decoder: _WatchedDecoder
    thread: threading.Thread | None = None
    job: Fetched | None = None
    """What it decodes now."""
    is_abandoned: bool = False


class DecodeStage:
    """The decoding threads.

    Args:
        reader: makes clips.
        work: gives the clips.
        fetch: gives substitutes.
        sharing: decodes groups.
        choice: what to decode with.
        timeout_s: longest time inside the codec for one clip.
        clock: measures it.
        start: starts a thread that runs a function.
    """

    def __init__(
        self,
        reader: ClipReader,
        work: Work,
        fetch: FetchStage,
        sharing: Sharing,
        choice: DecoderChoice,
        timeout_s: float,
        clock: Clock,
        start: Callable[[str, Callable[[], None]], threading.Thread],
    ) -> None:
        self._reader, self._work, self._fetch = reader, work, fetch
        self._timeout_s, self._clock, self._start = timeout_s, clock, start
        self._sharing, self._choice = sharing, choice
        self._meter, self._spans = reader.meter, reader.spans
        self._workers: list[_Worker] = []
        self._started = 0

    def add(self) -> None:
        """Start one more thread."""
        worker = _Worker(_WatchedDecoder(self._reader, self._clock, self._choice))
        self._workers.append(worker)
        name = f"dstream-decode-{self._started}"
        self._started += 1
        worker.thread = self._start(name, lambda: self._run(worker))

    @property
    def threads(self) -> list[threading.Thread]:
        """Those that are not abandoned."""
        return [worker.thread for worker in self._workers if worker.thread is not None]

    def look(self) -> float:
        """Abandon threads that hang; seconds until that may be the case again.

        Called under the lock of the work.
        """
        now_s = self._clock.monotonic_s()
        left_s = self._timeout_s
        for worker in list(self._workers):
            since_s = worker.decoder.since_s
            if since_s is None or worker.job is None:
                continue
            if now_s - since_s >= self._timeout_s:
                self._abandon(worker, worker.job)
            else:
                left_s = min(left_s, self._timeout_s - (now_s - since_s))
        return left_s

    def _abandon(self, worker: _Worker, job: Fetched) -> None:
        worker.is_abandoned = True
        self._workers.remove(worker)
        self._meter.event("deadline", "decode")
        if worker.thread is not None:
            worker.decoder.lose(worker.thread)
        self._work.end_early(job)
        self._fetch.release(job)
        sample = job.planned.sample
        error = MediaError(
            f"sample {sample.key!r} (file {sample.video.name!r}): decoding its clip at "
            f"{job.planned.start_s:.3f} s took more than decode_timeout_s={self._timeout_s:g}; its "
            "thread was left behind",
            reason=MediaReason.DECODE_DEADLINE,
            sample_key=sample.key,
            file=sample.video.name,
        )
        task = replace(job.task)  # the old one stays with the old thread
        self._fetch.leave(task, "group-deadline")
        task.batch.leave_memory()
        self.add()
        try:
            self._fetch.substitute(task, error, job.planned)
        except Exception as refusal:
            self._work.settle(task, refusal)
        else:
            self._work.retake(task)

    def _run(self, worker: _Worker) -> None:
        laps, goes_on = Laps(self._meter, self._clock), True
        while goes_on:
            # One call a clip, so that an idle thread holds no reference to a batch's memory.
            goes_on = self._decode_one(worker, laps)
            laps.end("seconds.decode_threads")

    def _decode_one(self, worker: _Worker, laps: Laps) -> bool:
        job = self._work.next_job()
        laps.end("seconds.decode_idle")
        if job is None:
            return False
        began_s = self._clock.monotonic_s()
        task = job if isinstance(job, Task) else job.task
        if isinstance(job, Fetched) and task.joins:
            self._take_shared(task)
            self._meter.add("seconds.decode_stage", self._clock.monotonic_s() - began_s)
            return True
        error: BaseException | None = None
        try:
            if isinstance(job, Fetched) and job.shared is not None:
                if self._decode_group(worker, job, job.shared):
                    self._count_time(began_s)
                    return not worker.is_abandoned
                job = task
            fetched = self._fetch.obtain(job, has_turn=True) if isinstance(job, Task) else job
            while fetched is not None and not self._decode(worker, fetched):
                fetched = self._fetch.obtain(task, has_turn=True)
        except BaseException as failure:
            error = failure
        if worker.is_abandoned:
            return False
        self._work.settle(task, error)
        self._count_time(began_s)
        return True

    def _count_time(self, began_s: float) -> None:
        self._meter.add("seconds.decode_stage", self._clock.monotonic_s() - began_s)

    def _decode(self, worker: _Worker, fetched: Fetched) -> bool:
        """Decode into the batch; False when the clip failed and a substitute is to be tried.

        An abandoned thread comes back with True, and changes nothing.
        """
        task, failure = fetched.task, None
        began_s = self._take_up(worker, fetched)
        try:
            # Without data the clip is read on the device, into memory of its own.
            out = task.batch.out(task.row) if fetched.data else None
            clip = self._reader.decode(worker.decoder, fetched.planned, fetched.data, out)
        except Exception as error:
            failure = error
        with self._work.changed:
            worker.job = None
            if worker.is_abandoned:
                return True
            if failure is None:
                is_there = isinstance(clip.decoded.video, np.ndarray)
                task.batch.put(task.row, clip, out if is_there else None)
        self._fetch.release(fetched)
        if failure is not None:
            self._fetch.substitute(task, failure, fetched.planned)
        else:
            self._took(worker, fetched, began_s)
        return failure is None

    def _take_up(self, worker: _Worker, fetched: Fetched) -> float:
        worker.job = fetched
        worker.decoder.convert_s = 0.0
        return self._clock.monotonic_s()

    def _took(self, worker: _Worker, fetched: Fetched, began_s: float) -> None:
        if self._spans is None:
            return
        clips, ended_s = ids_of(fetched.clips), self._clock.monotonic_s()
        self._spans.span(SpanStage.DECODE, began_s, ended_s, clips)
        # Frames are converted one by one as they come; as a span it is their sum.
        self._spans.span(SpanStage.CONVERT, ended_s - worker.decoder.convert_s, ended_s, clips)

    # Groups

    def _decode_group(self, worker: _Worker, fetched: Fetched, shared: GroupPlan) -> bool:
        """Decode for the whole group; False when the clip is to be made alone.

        Afterwards the clip is one like the others: it goes into its batch when that is due.
        """
        task, group = fetched.task, fetched.task.group
        clips: dict[int, ReadClip] | None = None
        reason, began_s = "group-memory", self._take_up(worker, fetched)
        try:
            if group is not None:
                clips = self._sharing.decode(worker.decoder, group, shared, fetched.data)
        except Exception:
            reason = "group-decode"  # alone, the clip at fault says what is wrong
        with self._work.changed:
            worker.job = None
            self._work.end_early(fetched)
            if worker.is_abandoned:
                return True
        self._fetch.release(fetched)
        if clips is None or group is None:
            self._fetch.leave(task, reason)
            return False
        self._took(worker, fetched, began_s)
        for waiting in group.end(clips):
            self._give(waiting, clips.get(waiting.draw.position))
        task.leads = False
        self._work.put_back(replace(fetched, data=[], shared=None))
        return True

    def _take_shared(self, task: Task) -> None:
        """Put a clip of a decoded group into its batch, or let it wait for the group."""
        if task.group is None:
            return
        try:
            clip = task.group.clip_or_wait(task)
        except KeyError:
            self._give(task, None)
        else:
            if clip is not None:
                self._give(task, clip)

    def _give(self, task: Task, clip: ReadClip | None) -> None:
        """Settle a clip with what its group has for it; without, have it made alone."""
        if clip is None:
            self._fetch.leave(task, "group-clip")
            self._work.retake(task)
            return
        error: BaseException | None = None
        try:
            self._place(task, clip)
        except BaseException as failure:
            error = failure
        self._work.settle(task, error)

    def _place(self, task: Task, clip: ReadClip) -> None:
        out: NDArray[np.generic] | None = None
        if isinstance(clip.decoded.video, np.ndarray):
            out = task.batch.out(task.row)
            np.copyto(out, clip.decoded.video)
            clip = replace(clip, decoded=replace(clip.decoded, video=out))
        with self._work.changed:
            task.batch.put(task.row, clip, out)
