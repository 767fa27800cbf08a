"""One turn of one peer: its process, its clips, and what passed the measuring proxy meanwhile."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench_videos import HEIGHT, RATE, WIDTH
from dstream.diagnose.proxy import MeasuringProxy
from dstream.diagnose.s3_request import Kind
from peers.adapters import PRELOAD
from peers.adapters.protocol import Task
from peers.dataset import DataSet
from peers.environments import Peer
from peers.frame_sums import FrameSums
from peers.processes import session_cpu_s

START_LIMIT_S = 180.0
"""For imports and opening; and once more for the first clip."""


class TurnFailedError(Exception):
    """Why there is no figure, in one line."""


@dataclass(frozen=True)
class Passed:
    """What passed a proxy: requests that are done, and bytes of bodies as far as they came."""

    data_requests: int
    """GETs of objects."""
    all_requests: int
    received_bytes: int
    proxy_cpu_s: float

    @classmethod
    def until_now(cls, proxy: MeasuringProxy) -> Passed:
        report = proxy.report(settle_s=0)
        return cls(
            sum(kind.requests for kind in report.kinds if kind.kind is Kind.GET),
            report.requests,
            report.passed_bytes,
            report.proxy_cpu_seconds,
        )

    def since(self, before: Passed) -> Passed:
        return Passed(
            self.data_requests - before.data_requests,
            self.all_requests - before.all_requests,
            self.received_bytes - before.received_bytes,
            self.proxy_cpu_s - before.proxy_cpu_s,
        )


@dataclass(frozen=True)
class Counted:
    """A clip that counted."""

    key: str
    frame: int
    rows_sum: int
    """Of its last frame."""
    at_s: float
    """Its arrival, since the last clip that did not count."""


@dataclass(frozen=True)
class Turn:
    """What one turn gave."""

    counted: Sequence[Counted]
    first_clip_s: float
    """From the open data set to the first clip, its workers' start included."""
    passed_clips: int
    """That came after the first and did not count."""
    stock_clips: int
    passed: Passed
    cpu_s: float
    """Of the adapter and its workers, while clips counted."""
    exact: str
    """``yes``, ``no``, or ``resized``: whether clips are bit-exact."""

    @property
    def clips(self) -> int:
        return len(self.counted)

    @property
    def seconds(self) -> float:
        return self.counted[-1].at_s

    @property
    def rate(self) -> float:
        return self.clips / self.seconds

    @property
    def rates_by_half(self) -> tuple[float, float]:
        """Clips a second up to the clip nearest the middle that was waited for, and after it.

        Clips come in bursts, from workers that end at about the same time: cut where none is ready.
        """
        arrivals_s = [clip.at_s for clip in self.counted]
        mean_s = self.seconds / self.clips
        awaited = [
            (abs(number - self.clips / 2), number)
            for number, (before_s, at_s) in enumerate(pairwise([0.0, *arrivals_s]), 1)
            if at_s - before_s >= mean_s / 2 and number < self.clips
        ]
        if not awaited:
            return self.rate, self.rate
        _, number = min(awaited)
        at_s = arrivals_s[number - 1]
        return number / at_s, (self.clips - number) / (self.seconds - at_s)

    @property
    def distinct(self) -> int:
        """Different clips among those that counted."""
        return len({(clip.key, clip.frame, clip.rows_sum) for clip in self.counted})


def take(
    peer: Peer,
    python: Path,
    task: Task,
    made: DataSet,
    sums: FrameSums,
    proxy: MeasuringProxy,
) -> Turn:
    """Run the adapter in a process group of its own, and end that whatever happens.

    What a fallen one said lies beside the videos.

    Raises:
        TurnFailedError: it fell, or said nothing for too long.
    """
    command = [str(python), "-m", f"peers.adapters.{peer.module}", json.dumps(asdict(task))]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env=proxy.environment(os.environ)
            | {"PYTHONFAULTHANDLER": "1", PRELOAD: ",".join(peer.preload)},
        )
        answers = _Answers(process.stdout or ())
        try:
            answers.next("ready", START_LIMIT_S)
            begun = answers.next("counting", START_LIMIT_S + task.settle_limit_s)
            cpu_s, before = session_cpu_s(process.pid), Passed.until_now(proxy)
            done = answers.next("done", 2 * task.limit_s + 60)
            cpu_s = session_cpu_s(process.pid) - cpu_s
            passed = Passed.until_now(proxy).since(before)
        except TurnFailedError as error:
            errors.seek(0)
            said = errors.read()
            Path(made.original).with_name(f"{peer.module}-fell.log").write_text(said)
            raise TurnFailedError(f"{error}: {last_error(said)}") from error
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    counted = [Counted(*clip) for clip in done["counted"]]
    return Turn(
        counted,
        begun["first_clip_s"],
        begun["passed_clips"],
        begun["stock_clips"],
        passed,
        cpu_s,
        "resized" if task.size else exactness(begun["whole"], counted, task.frames, made, sums),
    )


def last_error(said: str) -> str:
    """The line of an error output that tells most: the last that names an error, else the last."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b|Fatal", line)]
    return ([*lines[-1:], *errors] or ["no message"])[-1][:200]


class _Answers:
    """An adapter's answers as they come; lines that are none (libraries print) are left out."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            if line.startswith('{"event":'):
                self._queue.put(json.loads(line))
        self._queue.put(None)

    def next(self, event: str, limit_s: float) -> dict[str, Any]:
        try:
            answer = self._queue.get(timeout=limit_s)
        except queue.Empty:
            raise TurnFailedError(f"not {event} within {limit_s:g} s") from None
        if answer is None or answer["event"] != event:
            raise TurnFailedError(f"ended before it was {event}")
        return answer


def exactness(
    whole: Iterable[tuple[str, int, Sequence[int]]],
    counted: Iterable[Counted],
    frames: int,
    made: DataSet,
    sums: FrameSums,
) -> str:
    """Hold whole first clips, and some rows of all others' last frames, against a whole decode."""
    firsts = (sums.holds(frame + made.pieces.get(key, 0), clip) for key, frame, clip in whole)
    lasts = (
        sums.rows[clip.frame + made.pieces.get(clip.key, 0) + frames - 1] == clip.rows_sum
        for clip in counted
    )
    return "yes" if all(firsts) and all(lasts) else "no"


def task_for(
    peer: Peer,
    made: DataSet,
    endpoint: str,
    size: tuple[int, int] | None,
    scratch: str,
    **more: Any,
) -> Task:
    return Task(
        raw=made.raw,
        local=made.local_videos,
        prepared=made.prepared(peer),
        endpoint=endpoint,
        rate=RATE,
        size=size,
        full_size=(HEIGHT, WIDTH),
        scratch=scratch,
        videos=made.videos,
        **more,
    )
