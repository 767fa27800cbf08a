"""Small plain-JSON files of a repository: its format, and sessions that have a name."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dstream.errors import CorruptDataError
from dstream.format.fields import Fields
from dstream.format.root import FORMAT_VERSION, check_readable
from dstream.units import KIB

FORMAT_KEY = "_ds/format.json"
SESSION_PREFIX = "_ds/ses/"

_MAX_BYTES = 64 * KIB


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What jobs that share a session key agree on."""

    session_id: str
    base_seq: int


def session_key(key: str) -> str:
    """Where the session named ``key`` is recorded; finished parts are journalled beside it."""
    return f"{SESSION_PREFIX}{key}/session.json"


def encode_format(created_by: str) -> bytes:
    """Bytes of ``_ds/format.json``: readable without any library."""
    return _encode(
        {
            "v": FORMAT_VERSION,
            "min_reader": FORMAT_VERSION,
            "min_writer": FORMAT_VERSION,
            "created_by": created_by,
        }
    )


def check_format(data: bytes) -> None:
    """Refuse a repository that this version must not read.

    Raises:
        FormatVersionError: it was made by a newer version.
        CorruptDataError: the file is damaged.
    """
    document = _decode(data, FORMAT_KEY)
    check_readable(document, f"the repository's {FORMAT_KEY}")


def encode_session(record: SessionRecord) -> bytes:
    """Bytes of a session's record."""
    return _encode(
        {
            "v": FORMAT_VERSION,
            "min_reader": 1,
            "session_id": record.session_id,
            "base_seq": record.base_seq,
        }
    )


def decode_session(data: bytes, where: str) -> SessionRecord:
    """The record in ``data``.

    Raises:
        FormatVersionError: it needs a newer reader.
        CorruptDataError: the file is damaged.
    """
    document = _decode(data, where)
    check_readable(document, where)
    fields = Fields(document, where)
    return SessionRecord(fields.take("session_id", str), fields.take("base_seq", int))


def _encode(document: dict[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True).encode() + b"\n"


def _decode(data: bytes, where: str) -> dict[str, object]:
    if len(data) > _MAX_BYTES:
        raise CorruptDataError(f"{where}: {len(data)} bytes, expected at most {_MAX_BYTES}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as fault:
        raise CorruptDataError(f"{where}: not JSON: {fault}", where=where) from fault
    return Fields(document, where).rest()
