"""CPU time of a process and of all that it began, from Linux' /proc (proc(5))."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_SESSION, _TIMES = 3, slice(11, 15)
"""Places after the command's name: session; utime, stime, cutime, cstime."""


def session_ticks(stat: str, session: int) -> int:
    """Ticks of one process and of its children that ended; 0 in another session."""
    fields = stat.rpartition(")")[2].split()
    return sum(map(int, fields[_TIMES])) if int(fields[_SESSION]) == session else 0


def session_cpu_s(session: int) -> float:
    """Of all processes in a session, and of their children that ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            ticks += session_ticks(path.read_text(), session)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended, and its parent has its time
    return ticks / _TICKS_A_SECOND
