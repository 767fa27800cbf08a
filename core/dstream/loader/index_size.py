"""How much memory an index takes, for caches that are bounded by bytes."""

from __future__ import annotations

from dstream.format.index import VideoIndex

_OBJECT_BYTES = 2000
"""Python objects of one index, roughly."""


def index_bytes(index: VideoIndex) -> int:
    """Bytes of the index's arrays and strings in memory."""
    size = _OBJECT_BYTES + len(index.header) + len(index.track.extradata)
    for table in (index.gops, index.packets):
        if table is not None:
            arrays = (getattr(table, name) for name in table.__slots__)
            size += sum(array.nbytes for array in arrays if array is not None)
    return size
