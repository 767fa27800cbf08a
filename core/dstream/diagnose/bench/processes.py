"""CPU time and memory of a process and all that it started, as Linux tells them in ``/proc``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from dstream.loader.settings import default_workers

_PROC = Path("/proc")
_INTERVAL_S = 0.25
_MOST_SHARE = 0.01
"""Of the time, for looking: the memory of large processes is slow to sum up."""


@dataclass(frozen=True, slots=True)
class Process:
    """One line of ``/proc/PID/stat``; fields as in proc_pid_stat(5)."""

    pid: int
    parent: int
    cpu_ticks: int
    """Its own, user and system."""
    reaped_ticks: int
    """Those of its children that ended and were waited for, and of theirs."""
    rss_pages: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and its descendants used until now."""

    cpu_s: float
    """Of those that ended as well."""
    thread_cpu_s: dict[tuple[int, int], float]
    """Of each living thread, by process and thread."""
    processes: int
    rss_bytes: int
    """Pages that several processes share are counted for each of them."""
    pss_bytes: int | None
    """Shared pages are counted once; None where the kernel does not tell."""
    machine_cpu_s: float
    """Of everything on the machine."""


def parse_stat(text: str) -> Process:
    """Read ``/proc/PID/stat``. The name in parentheses may hold anything.

    >>> parse_stat("7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 30 4 5 6 20 0 1 0 99 4096 12 0")
    Process(pid=7, parent=1, cpu_ticks=34, reaped_ticks=11, rss_pages=12)
    """
    before, _, rest = text.rpartition(")")
    words = rest.split()
    user, system, reaped_user, reaped_system = (int(word) for word in words[11:15])
    return Process(
        pid=int(before.partition(" ")[0]),
        parent=int(words[1]),
        cpu_ticks=user + system,
        reaped_ticks=reaped_user + reaped_system,
        rss_pages=int(words[21]),
    )


def descendants(root: int, processes: Iterable[Process]) -> list[Process]:
    """``root`` and all that it, or what it started, has started and that is still there.

    >>> made = [Process(pid, parent, 0, 0, 0) for pid, parent in ((4, 3), (3, 2), (2, 1), (9, 1))]
    >>> [process.pid for process in descendants(2, made)]
    [2, 3, 4]
    """
    children: dict[int, list[Process]] = {}
    found = []
    for process in processes:
        children.setdefault(process.parent, []).append(process)
        if process.pid == root:
            found.append(process)
    for process in found:  # grows as it is walked
        found += children.get(process.pid, [])
    return found


def usage(root: int) -> Usage | None:
    """What ``root`` and its descendants used until now; None where there is no ``/proc``."""
    tree = descendants(root, _all_processes())
    if not tree:
        return None
    ticks = sum(process.cpu_ticks + process.reaped_ticks for process in tree)
    shares = [_pss_bytes(process.pid) for process in tree]
    told = [share for share in shares if share is not None]
    return Usage(
        cpu_s=ticks / _TICKS_PER_S,
        thread_cpu_s={key: cpu_s for process in tree for key, cpu_s in _threads(process.pid)},
        processes=len(tree),
        rss_bytes=sum(process.rss_pages for process in tree) * _PAGE_BYTES,
        pss_bytes=sum(told) if len(told) == len(shares) else None,
        machine_cpu_s=busy_ticks((_PROC / "stat").read_text()) / _TICKS_PER_S,
    )


def busy_ticks(text: str) -> int:
    """Ticks that all CPUs were not idle, by the first line of ``/proc/stat``; see proc_stat(5).

    >>> busy_ticks("cpu  10 1 5 900 40 2 3 4 9 0\\ncpu0 ...")
    25
    """
    ticks = [int(word) for word in text.partition("\n")[0].split()[1:9]]
    return sum(ticks) - sum(ticks[3:5])


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _all_processes() -> Iterable[Process]:
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            yield parse_stat(path.read_text(errors="replace"))
        except OSError:
            pass  # it ended meanwhile


def _threads(pid: int) -> Iterable[tuple[tuple[int, int], float]]:
    for path in (_PROC / str(pid) / "task").glob("*/stat"):
        try:
            thread = parse_stat(path.read_text(errors="replace"))
        except OSError:
            continue
        yield (pid, thread.pid), thread.cpu_ticks / _TICKS_PER_S


def _pss_bytes(pid: int) -> int | None:
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return None
    # A process that has ended and was not waited for has no memory, and no line.
    sizes = [line.split()[1] for line in text.splitlines() if line.startswith("Pss:")]
    return 1024 * int(sizes[0]) if sizes else 0


def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Cores that this process may keep busy: by its affinity, and by its container's quota.

    Args:
        quota: ``$MAX $PERIOD`` in microseconds, as the kernel's "Control Group v2" has it.
    """
    cores = float(default_workers())
    try:
        allowed, period = quota.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if allowed == "max" else min(cores, int(allowed) / int(period))


def shares_all_cpus() -> bool:
    """Whether this process may run on every CPU, so that who else is busy is in its way."""
    return default_workers() == os.cpu_count()


class Watch:
    """Looks at this process and its descendants again and again, in a thread of its own.

    What it found is told after the block; None where there is no ``/proc``.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dstream-watch", daemon=True)
        self._first = self._last = usage(self._pid)
        self._thread_cpu_s = dict(self._last.thread_cpu_s) if self._last else {}
        self.processes = 0
        """Most at the same time."""
        self.peak_rss_bytes: int | None = None
        self.peak_pss_bytes: int | None = None

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        interval_s = 0.0
        while not self._ended.wait(interval_s):
            began_s = time.thread_time()
            self._look()
            interval_s = max(_INTERVAL_S, (time.thread_time() - began_s) / _MOST_SHARE)

    def _look(self) -> None:
        seen = usage(self._pid)
        if seen is None:
            return
        self._last = seen
        self._thread_cpu_s.update(seen.thread_cpu_s)  # those that ended keep what they had
        self.processes = max(self.processes, seen.processes)
        self.peak_rss_bytes = max(self.peak_rss_bytes or 0, seen.rss_bytes)
        if seen.pss_bytes is not None:
            self.peak_pss_bytes = max(self.peak_pss_bytes or 0, seen.pss_bytes)

    def cpu_s(self) -> float | None:
        """CPU seconds from the making of this object to the end of the block."""
        if self._first is None or self._last is None:
            return None
        return self._last.cpu_s - self._first.cpu_s

    def other_cpu_s(self) -> float | None:
        """CPU seconds of all other programs in that time, where they compete for its CPUs."""
        cpu_s = self.cpu_s()
        if cpu_s is None or self._first is None or self._last is None or not shares_all_cpus():
            return None
        return max(0.0, self._last.machine_cpu_s - self._first.machine_cpu_s - cpu_s)

    def busiest_thread_s(self) -> float | None:
        """CPU seconds of the thread that used most in that time."""
        if self._first is None:
            return None
        before = self._first.thread_cpu_s
        return max(cpu_s - before.get(key, 0.0) for key, cpu_s in self._thread_cpu_s.items())
