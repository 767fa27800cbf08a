"""Spans as Chrome's Trace Event JSON, which Perfetto and chrome://tracing open.

The format: "Trace Event Format", Google, 2016. A span is a complete event (``ph`` ``X``) in the
row of its thread; ``ts`` and ``dur`` are microseconds, from the first span on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from dstream.measure.spans import Span

_PID = 1


def write_trace(out: TextIO, spans: Sequence[Span], *, title: str, dropped: int = 0) -> None:
    """Write a whole document, an event a line.

    Args:
        out: text file.
        spans: in any order.
        title: names the process in the viewer.
        dropped: spans that were not kept; the document says so, where viewers show it too.
    """
    if dropped:
        title += f" ({dropped:,} later spans dropped)"
    out.write('{"displayTimeUnit": "ms",\n')
    out.write(f'"otherData": {json.dumps({"tool": "dstream bench", "dropped_spans": dropped})},\n')
    out.write('"traceEvents": [')
    for place, event in enumerate(events(spans, title)):
        out.write(",\n" if place else "\n")
        out.write(json.dumps(event))
    out.write("\n]}\n")


def events(spans: Sequence[Span], title: str) -> Iterator[dict[str, Any]]:
    """Names of the process and of its threads, then a slice for each span, by time."""
    yield _name("process_name", 0, title)
    threads = {
        thread: place + 1
        for place, thread in enumerate(sorted({s.thread for s in spans}, key=_order))
    }
    for thread, tid in threads.items():
        yield _name("thread_name", tid, thread)
        yield {**_name("thread_sort_index", tid, thread), "args": {"sort_index": tid}}
    first_s = min((span.start_s for span in spans), default=0.0)
    # What encloses comes first: viewers nest by the order of equal beginnings.
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        start_ns, end_ns = (round((at_s - first_s) * 1e9) for at_s in (span.start_s, span.end_s))
        yield {
            "name": str(span.stage),
            "cat": "dstream",
            "ph": "X",
            "ts": start_ns / 1e3,
            "dur": (end_ns - start_ns) / 1e3,
            "pid": _PID,
            "tid": threads[span.thread],
            "args": {
                "positions": [clip.position for clip in span.clips],
                "slots": [clip.slot for clip in span.clips],
                "samples": [clip.sample for clip in span.clips],
            },
        }


def _name(kind: str, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PID, "tid": tid, "args": {"name": name}}


def _order(thread: str) -> tuple[bool, str, int]:
    """The consumer's thread first, then by kind and number."""
    found = re.fullmatch(r"(dstream-[a-z]+)-(\d+)", thread)
    return (True, found[1], int(found[2])) if found else (False, thread, 0)
