"""What indexing may cost, and the refusals that all indexers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dstream.errors import MediaError, MediaReason
from dstream.media.window import Window

KEYFRAME_BYTES = 192 * 1024
"""At most this much of a keyframe is read to learn the picture format."""
MAX_KEYFRAME_BYTES = 32 << 20
"""A keyframe that is not understood in part is read whole, up to this size."""
KEYFRAME_TRIES = 3
"""So many keyframes are tried, should the first ones be damaged."""


def keyframe_pieces(
    get: Callable[[int, int], bytes], places: Iterable[tuple[int, int]]
) -> Iterator[bytes]:
    """The starts of some keyframes, then the whole of the first, for decoders that insist on it.

    Args:
        get: (start, stop) -> bytes of the file.
        places: (offset, size) of keyframes.
    """
    known = list(places)
    for offset, size in known:
        yield get(offset, offset + min(size, KEYFRAME_BYTES))
    for offset, size in known[:1]:
        if KEYFRAME_BYTES < size <= MAX_KEYFRAME_BYTES:
            yield get(offset, offset + size)


def check_budget(window: Window, more_bytes: int, limit_bytes: int | None) -> None:
    """Refuse to read on beyond the caller's limit.

    Raises:
        MediaError: with reason ``index-too-large``.
    """
    reader = window.reader
    if limit_bytes is not None and reader.bytes_read + more_bytes > limit_bytes:
        raise MediaError(
            f"{reader.name!r} keeps no index of its packets: finding them takes more than the"
            f" {limit_bytes} bytes that may be read for an index",
            reason=MediaReason.INDEX_TOO_LARGE,
            name=reader.name,
            size_bytes=reader.size_bytes,
        )


def encrypted(name: str) -> MediaError:
    """The error for protected files."""
    return MediaError(
        f"{name!r} has an encrypted video track: it would decode into noise",
        reason=MediaReason.ENCRYPTED,
        name=name,
    )
