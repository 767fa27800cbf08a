"""What reading hostile bytes costs in memory, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

_PROGRAM = """
import importlib, sys
from dstream.errors import DstreamError

def peak_kib():  # of this program alone: ru_maxrss would count the one that started it
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

module, name, arguments = sys.argv[1], sys.argv[2], eval(sys.argv[3])
function = getattr(importlib.import_module(module), name)
data = sys.stdin.buffer.read()
before = peak_kib()
try:
    function(data, **arguments)
    verdict = "read"
except DstreamError as error:
    verdict = type(error).__name__ + ": " + " ".join(str(error).split())
print(peak_kib() - before, verdict)
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the bytes."""

    grown_bytes: int
    """By how much the peak of resident memory grew."""
    verdict: str
    """``read``, or the class of the error and its message."""


def read_in_child(function: str, data: bytes, **arguments: object) -> Outcome:
    """Call ``function`` (``module:name``) with ``data`` in a fresh process; Linux only."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *function.split(":"), repr(arguments)],
        input=data,
        capture_output=True,
        check=True,
        timeout=120,
    )
    grown_kib, verdict = done.stdout.decode().strip().split(" ", 1)
    return Outcome(int(grown_kib) * 1024, verdict)
