"""From a task to the bytes of its clip, or of the clip that takes its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dstream.clock import Clock
from dstream.loader.budget import ByteBudget
from dstream.loader.failures import FailureLog, is_for_good
from dstream.loader.plan import Order
from dstream.loader.reader import ClipReader, PlannedClip, ids_of
from dstream.loader.shared import GroupPlan, Sharing
from dstream.loader.work import Fetched, Task
from dstream.measure.spans import SpanStage


class FetchStage:
    """Plans and fetches clips, substitutes for failed ones included. Thread-safe.

    Args:
        reader: makes clips.
        order: gives substitutes.
        budget: bounds the fetched bytes.
        failures: decides what may be skipped.
        sharing: plans and fetches for groups.
        retake: has a clip made from the beginning.
        clock: measures waiting.
    """

    def __init__(
        self,
        reader: ClipReader,
        order: Order,
        budget: ByteBudget,
        failures: FailureLog,
        sharing: Sharing,
        retake: Callable[[Task], None],
        clock: Clock,
    ) -> None:
        self._sharing, self._retake = sharing, retake
        self._reader, self._order, self._budget = reader, order, budget
        self._failures, self._clock, self._meter = failures, clock, reader.meter
        self._spans = reader.spans

    def obtain(self, task: Task, *, has_turn: bool) -> Fetched | None:
        """Plan and fetch a task's clip, or a substitute's; None when the loader was closed.

        Args:
            task: what is wanted; its draw becomes the substitute's.
            has_turn: its bytes were granted before: waiting for others' could wait for itself.

        Raises:
            Whatever may not be skipped.
        """
        while True:
            if self._skip_known(task):
                continue
            began_s = self._clock.monotonic_s()
            fetched: Fetched | None = None
            try:
                fetched = self._planned(task)
                task.batch.expect(task.row, fetched.planned.sample)
                self._took(SpanStage.PLAN, began_s, [fetched.planned])
                if task.joins:
                    self._budget.forgo(task.turn)
                    return fetched
                if has_turn:
                    self._budget.overdraw(fetched.size_bytes)
                elif not self._acquire(task, fetched.size_bytes):
                    return None
                has_turn = True
            except Exception as error:
                self._spent(began_s)
                self.substitute(task, error, None if fetched is None else fetched.planned)
                continue
            try:
                began_s = self._clock.monotonic_s()
                fetched.data = self._data(fetched)
                self._took(SpanStage.FETCH, began_s, fetched.clips)
                return fetched
            except Exception as error:
                self._spent(began_s)
                self._budget.release(fetched.size_bytes)
                if fetched.shared is None:
                    self.substitute(task, error, fetched.planned)
                else:
                    self.leave(task, "group-read")

    def _took(self, stage: SpanStage, began_s: float, clips: Sequence[PlannedClip]) -> None:
        ended_s = self._spent(began_s)
        if self._spans is not None:
            self._spans.span(stage, began_s, ended_s, ids_of(clips))

    def _spent(self, began_s: float) -> float:
        """Count the time of a stage, however it ended; returns when that is."""
        ended_s = self._clock.monotonic_s()
        self._meter.add("seconds.fetch_stage", ended_s - began_s)
        return ended_s

    def _planned(self, task: Task) -> Fetched:
        """A task's clip, and its group's reads where it leads one; nothing is read yet."""
        planned = self._reader.plan(task.draw)
        shared: GroupPlan | None = None
        if task.leads and task.group is not None:
            shared = self._sharing.plan(task.group)
            if shared is None:
                self.leave(task, "group-plan")
        return Fetched(task.turn, task, planned, [], shared)

    def _data(self, fetched: Fetched) -> list[bytes]:
        if fetched.shared is None:
            return self._reader.fetch(fetched.planned)
        return self._sharing.fetch(fetched.shared)

    def leave(self, task: Task, reason: str) -> None:
        """Make a clip alone. If it led its group, so are all others of the group."""
        group, led = task.group, task.leads
        task.group, task.leads = None, False
        if group is None or not led:
            return
        self._meter.event("fallback", reason)
        for waiting in group.end({}):
            waiting.group = None
            self._retake(waiting)

    def _acquire(self, task: Task, size_bytes: int) -> bool:
        began_s = self._clock.monotonic_s()
        granted = self._budget.acquire(task.turn, size_bytes)
        self._meter.add("seconds.fetch_blocked", self._clock.monotonic_s() - began_s)
        return granted

    def forgo(self, task: Task) -> None:
        """The task failed: let the others have their turns."""
        self._budget.forgo(task.turn)

    def release(self, fetched: Fetched) -> None:
        """A clip's bytes are decoded."""
        self._budget.release(fetched.size_bytes)

    def _skip_known(self, task: Task) -> bool:
        """Give the task another clip when its file is known to give none."""
        key, file = self._reader.sample_key(task.draw), self._reader.file_of(task.draw)
        if not self._failures.is_given_up(file, key, task.attempt):
            return False
        self._draw_again(task)
        return True

    def substitute(self, task: Task, error: Exception, planned: PlannedClip | None) -> None:
        """Give the task another clip after a failure, or raise the error."""
        name = None if planned is None else planned.sample.video.name
        self._failures.record(
            error,
            self._reader.sample_key(task.draw),
            task.attempt,
            self._reader.file_of(task.draw),
            for_good=is_for_good(error, placed=planned is not None, file=name),
            name=name,
        )
        self._draw_again(task)

    def _draw_again(self, task: Task) -> None:
        self.leave(task, "group-clip")
        task.attempt += 1
        task.draw = self._order.substitute(task.draw.position, task.attempt)
