"""Tar shards: plain POSIX archives of original bytes that any tar reader opens.

Headers depend on nothing but name and size (mtime 0, owner 0), so equal inputs give equal
shards. Names that ustar cannot hold go into a pax header. Payloads start at multiples of 512, or
of what the writer is told: a pax comment of the right length, which every reader passes over,
moves a header's end there.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from dstream.errors import InvalidInputError, StorageError

BLOCK_BYTES = 512
END_BYTES = bytes(2 * BLOCK_BYTES)
"""Two zero blocks end an archive."""

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """One file to be archived."""

    name: str
    size_bytes: int


def check_member_name(name: str) -> str:
    """Return ``name`` if unpacking it anywhere is harmless, else raise.

    Raises:
        InvalidInputError: empty, absolute, holding ``..``, NUL, an empty part, or no Unicode.
    """
    parts = name.split("/")
    fault = None
    if "\0" in name:
        fault = "it holds a NUL character"
    elif any(part in ("", ".", "..") for part in parts):
        fault = "a part of it is empty, '.' or '..'"
    else:
        try:
            name.encode()
        except UnicodeEncodeError:
            fault = "it is not valid Unicode"
    if fault is not None:
        raise InvalidInputError(f"unusable name for a tar member {name!r:.200}: {fault}", key=name)
    return name


def member_header(member: Member, comment_bytes: int = 0) -> bytes:
    """The header blocks that precede a member's payload.

    Args:
        member: its name and size.
        comment_bytes: size of a pax record ``LENGTH comment=SPACES``; 0 for none.
    """
    info = tarfile.TarInfo(check_member_name(member.name))
    info.size = member.size_bytes
    info.mode = 0o644
    if comment_bytes:
        frame_bytes = len(f"{comment_bytes} comment=\n")
        info.pax_headers = {"comment": " " * (comment_bytes - frame_bytes)}
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def aligned_header(member: Member, position: int, align_bytes: int) -> bytes:
    """The header blocks of a member at ``position``, so long that they end at a multiple.

    Args:
        member: its name and size.
        position: of the header in the archive, a multiple of 512.
        align_bytes: a power of two, 512 or more.
    """
    header = member_header(member)
    room = -(position + len(header)) % align_bytes
    if not room:
        return header
    # A pax header of its own takes a block before the first record.
    record_bytes = room if len(header) > BLOCK_BYTES else room - BLOCK_BYTES
    return member_header(member, record_bytes or align_bytes)


def padding_bytes(size_bytes: int) -> int:
    """Zeros after a payload of this size, up to the next block."""
    return -size_bytes % BLOCK_BYTES


def plan_offsets(members: Sequence[Member]) -> tuple[list[int], int]:
    """Where each member's payload starts, and the size of the whole archive."""
    position = 0
    offsets: list[int] = []
    for member in members:
        position += len(member_header(member))
        offsets.append(position)
        position += member.size_bytes + padding_bytes(member.size_bytes)
    return offsets, position + len(END_BYTES)


class Sink(Protocol):
    """Where an archive goes: writes take all bytes or raise."""

    def write(self, data: bytes, /) -> object:
        """Take ``data``."""
        ...

    def flush(self) -> object:
        """Make everything written visible to readers."""
        ...


class TarWriter:
    """Appends members to a sink.

    Args:
        target: the sink.
        align_bytes: payloads begin at multiples of this: a power of two, 512 or more.
    """

    def __init__(self, target: Sink, align_bytes: int = BLOCK_BYTES) -> None:
        self._target = target
        self._align_bytes = align_bytes
        self.size_bytes = 0
        """Bytes written so far, without the end of the archive."""

    def add(self, member: Member, payload: BinaryIO) -> int:
        """Append a member; returns the offset of its payload.

        Args:
            member: its name and exact size.
            payload: read from where it stands to its end.

        Raises:
            StorageError: the payload is shorter or longer than said. The archive is then
                unusable.
        """
        header = aligned_header(member, self.size_bytes, self._align_bytes)
        self._target.write(header)
        copied = 0
        while block := payload.read(_COPY_BYTES):
            copied += len(block)
            if copied > member.size_bytes:
                break
            self._target.write(block)
        if copied != member.size_bytes:
            raise StorageError(
                f"tar member {member.name!r}: its payload has {copied} bytes or more, expected "
                f"{member.size_bytes}",
                key=member.name,
            )
        self._target.write(bytes(padding_bytes(copied)))
        offset = self.size_bytes + len(header)
        self.size_bytes = offset + copied + padding_bytes(copied)
        return offset

    def finish(self) -> int:
        """Write the end of the archive; returns the archive's size in bytes."""
        self._target.write(END_BYTES)
        self._target.flush()
        self.size_bytes += len(END_BYTES)
        return self.size_bytes
