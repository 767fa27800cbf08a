"""Finding the packets of a video: what kind of file it is, and which indexer knows it."""

from __future__ import annotations

from dstream.errors import MediaError, MediaReason
from dstream.format.index import VideoIndex
from dstream.media.limits import encrypted
from dstream.media.matroska import index_matroska
from dstream.media.mp4 import index_progressive
from dstream.media.mp4_boxes import HEAD_BYTES, is_encrypted, read_layout
from dstream.media.mp4_fragments import index_fragmented, is_fragmented
from dstream.media.reader import RandomReader
from dstream.media.sequential import index_by_pass, index_rest
from dstream.media.sniff import is_scrambled, program_header, sniff, transport_header
from dstream.media.window import Window


def index_video(
    reader: RandomReader, *, need_packets: bool = False, max_index_bytes: int | None = None
) -> list[VideoIndex]:
    """Index every video track of a file, the best one first.

    The bytes alone decide, so a file gives the same index wherever it lies.

    Args:
        reader: the file.
        need_packets: list every packet even where the container's own index of keyframes would
            do; this may take a full pass.
        max_index_bytes: refuse a pass that would read more than this.

    Returns:
        One index for each video track with frames; cover pictures are none.

    Raises:
        MediaError: the file gives no frames; its ``reason`` says why.
        StorageError: the bytes could not be read.
    """
    if reader.size_bytes == 0:
        raise MediaError(f"{reader.name!r} is empty", reason=MediaReason.EMPTY, name=reader.name)
    window = Window(reader)
    head = window.get(0, HEAD_BYTES)
    kind = sniff(head)
    if kind == "mp4":
        found = _index_mp4(window, need_packets, max_index_bytes)
    elif kind == "matroska":
        found = index_matroska(window, need_packets=need_packets, max_index_bytes=max_index_bytes)
    elif kind == "mpegts":
        found = index_by_pass(
            window,
            kind,
            "mpegts",
            transport_header(head),
            max_index_bytes,
            lambda pid: is_scrambled(head, pid),
        )
    elif kind == "mpegps":
        found = index_by_pass(window, kind, "mpeg", program_header(head), max_index_bytes)
    elif kind in ("flv", "avi"):
        found = index_by_pass(window, kind, kind, None, max_index_bytes)
    else:
        found = index_rest(window, max_index_bytes)
    return sorted(found, key=_rank)


def _index_mp4(window: Window, need_packets: bool, max_index_bytes: int | None) -> list[VideoIndex]:
    layout = read_layout(window)
    if is_encrypted(layout.moov_bytes, 8, len(layout.moov_bytes)):
        raise encrypted(window.reader.name)
    if not is_fragmented(layout):
        return index_progressive(window, layout)
    return index_fragmented(
        window, layout, need_packets=need_packets, max_index_bytes=max_index_bytes
    )


def _rank(index: VideoIndex) -> tuple[int, int, int]:
    track = index.track
    return (-track.width * track.height, -(track.frame_count or 0), track.track_id)
