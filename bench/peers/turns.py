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
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import av

from bench_videos import RATE
from dstream.diagnose.proxy import MeasuringProxy
from dstream.diagnose.s3_request import Kind
from peers.adapters.protocol import Task
from peers.dataset import DataSet
from peers.environments import Peer

START_LIMIT_S = 300.0
"""For imports, opening, and the clips that are not counted."""


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
class Turn:
    """What one turn gave, counted after its first clips."""

    clips: int
    seconds: float
    first_clip_s: float
    """From the open data set to the first clip, its workers' start included."""
    passed: Passed
    exact: str
    """``yes``, ``no``, or ``resized``: whether the first clips are bit-exact."""

    @property
    def rate(self) -> float:
        return self.clips / self.seconds


def take(peer: Peer, python: Path, task: Task, made: DataSet, proxy: MeasuringProxy) -> Turn:
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
            env=proxy.environment(os.environ) | {"PYTHONFAULTHANDLER": "1"},
        )
        answers = _Answers(process.stdout or ())
        try:
            answers.next("ready", START_LIMIT_S)
            warm = answers.next("warm", START_LIMIT_S)
            before = Passed.until_now(proxy)
            done = answers.next("done", 4 * task.limit_s + 60)
            passed = Passed.until_now(proxy).since(before)
        except TurnFailedError as error:
            errors.seek(0)
            said = errors.read()
            Path(made.original).with_name(f"{peer.module}-fell.log").write_text(said)
            raise TurnFailedError(f"{error}: {last_error(said)}") from error
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not done["clips"]:
        raise TurnFailedError(f"no clip within {task.limit_s:g} s after its first")
    return Turn(
        done["clips"],
        done["seconds"],
        warm["first_clip_s"],
        passed,
        "resized" if task.size else exactness(warm["seen"], made, task.frames),
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


def exactness(seen: list[list[Any]], made: DataSet, frames: int) -> str:
    """Compare checksums of whole clips with those of a decode from the file's start."""
    wanted: dict[int, int] = {}
    for key, frame, _, crc in seen:
        wanted[frame + made.pieces.get(key, 0)] = crc
    return "yes" if crcs(made.original, tuple(sorted(wanted)), frames) == wanted else "no"


def crcs(path: str, starts: tuple[int, ...], frames: int) -> dict[int, int]:
    """CRC-32 of the clips [T, C, H, W] that begin at ``starts``."""
    sums = dict.fromkeys(starts, 0)
    with av.open(path) as container:
        container.streams.video[0].thread_count = 0
        for number, frame in enumerate(container.decode(video=0)):
            inside = [start for start in starts if start <= number < start + frames]
            if inside:
                data = frame.to_ndarray(format="rgb24").transpose(2, 0, 1).tobytes()
                for start in inside:
                    sums[start] = zlib.crc32(data, sums[start])
            if starts and number >= starts[-1] + frames:
                break
    return sums


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
        prepared=made.prepared(peer),
        endpoint=endpoint,
        rate=RATE,
        size=size,
        scratch=scratch,
        videos=made.videos,
        **more,
    )
