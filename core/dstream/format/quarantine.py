"""Files that gave no frames in a run, as lines of JSON: written by loaders, read by an ingest."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from dstream.errors import InvalidInputError

MAX_DETAIL = 500


@dataclass(frozen=True, slots=True)
class QuarantineLine:
    """One file."""

    name: str
    """Its path relative to the source."""
    reason: str
    """As loaders count skips and quarantine tables give it."""
    detail: str = ""


def encode_line(line: QuarantineLine) -> bytes:
    """The line's bytes, its end included: few enough to be written at once."""
    short = QuarantineLine(line.name, line.reason, line.detail[:MAX_DETAIL])
    return json.dumps(asdict(short)).encode() + b"\n"


def parse_lines(data: bytes, where: str) -> tuple[QuarantineLine, ...]:
    """The files, each once, in the order in which they were met.

    A last line without an end is left out: its writer was killed.

    Raises:
        InvalidInputError: another line is no such line.

    >>> parse_lines(b'{"name": "a.mp4", "reason": "damaged"}\\n{"na', "f")
    (QuarantineLine(name='a.mp4', reason='damaged', detail=''),)
    """
    found: dict[str, QuarantineLine] = {}
    for number, text in enumerate(data.split(b"\n")[:-1], 1):
        try:
            row = json.loads(text)
            line = QuarantineLine(row["name"], row["reason"], row.get("detail", ""))
            usable = all(isinstance(part, str) for part in (line.name, line.reason, line.detail))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            usable = False
        if not usable:
            raise InvalidInputError(
                f'{where}, line {number}: expected {{"name": ..., "reason": ...}}, as loaders '
                f"write it with quarantine=; got {text[:80]!r}"
            )
        found.setdefault(line.name, line)
    return tuple(found.values())
