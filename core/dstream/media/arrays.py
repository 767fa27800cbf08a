"""Arrays as tracks: a row of the leading axis is a packet, and its bytes are its value.

So plans, checksums, caches, orders and resuming hold for arrays as for video. Rows are counted
by pts, one a second, so that ``start_s`` is a row's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dstream.errors import CorruptDataError, MediaError, MediaReason
from dstream.format.columns import MAX_ROWS
from dstream.format.index import (
    Access,
    GopTable,
    IndexCost,
    PacketFlag,
    PacketTable,
    VideoIndex,
    VideoTrack,
)
from dstream.media.array_header import (
    NPY_MAGIC,
    PREFIX_BYTES,
    StoredArray,
    header_bytes,
    stored_arrays,
)
from dstream.media.clip import Extent
from dstream.media.reader import RandomReader
from dstream.media.row_form import ARRAY_CODEC, RowForm, row_form

ALIGN_BYTES = 4096
"""What packed files of arrays are aligned to: the unit of direct reads from a disk."""

MAX_ROW_BYTES = 1 << 30
_UNSPECIFIED = 2


def index_arrays(reader: RandomReader, *, whole: bool = False) -> list[VideoIndex]:
    """Index every array of an ``.npy`` or safetensors file; by name where there are several.

    Args:
        reader: the file; only its header is read.
        whole: an array is one row, instead of as many as its leading axis is long.

    Raises:
        MediaError: the file cannot be used; its ``reason`` says why.
        StorageError: the bytes could not be read.
    """
    if reader.size_bytes == 0:
        raise MediaError(f"{reader.name!r} is empty", reason=MediaReason.EMPTY, name=reader.name)
    prefix = reader.read(0, min(PREFIX_BYTES, reader.size_bytes))
    try:
        arrays = stored_arrays(
            reader.read(0, header_bytes(prefix, reader.size_bytes)), reader.size_bytes
        )
        container = "npy" if prefix.startswith(NPY_MAGIC) else "safetensors"
        cost = IndexCost(reader.bytes_read, reader.runs, False)
        return [
            _index(array, number, container, reader.size_bytes, cost, whole)
            for number, array in enumerate(arrays)
        ]
    except MediaError as error:
        raise MediaError(
            f"{reader.name!r}: {error}", reason=error.reason, name=reader.name
        ) from error


def _index(
    array: StoredArray, number: int, container: str, size_bytes: int, cost: IndexCost, whole: bool
) -> VideoIndex:
    shape = array.form.shape
    rows, row_shape = (shape[0], shape[1:]) if shape and not whole else (1, shape)
    form = RowForm(array.form.dtype, row_shape, array.form.big_endian)
    if rows == 0 or form.size_bytes == 0:
        raise MediaError(
            f"array {array.name!r} of shape {list(shape)} holds nothing",
            reason=MediaReason.NO_FRAMES,
        )
    if form.size_bytes > MAX_ROW_BYTES or rows > MAX_ROWS:
        raise MediaError(
            f"array {array.name!r} has {rows} rows of {form.size_bytes} bytes; at most {MAX_ROWS} "
            f"rows, and {MAX_ROW_BYTES} bytes a row, can be streamed: store it in several files",
            reason=MediaReason.BAD_ARRAY,
        )
    track = _track(form, rows, number, container, array.name)
    packets, gops = _tables(array.offset_bytes, form.size_bytes, rows)
    return VideoIndex(track, Access.PACKETS, gops, packets, b"", size_bytes, cost)


def _track(form: RowForm, rows: int, number: int, container: str, name: str) -> VideoTrack:
    one = Fraction(1)
    return VideoTrack(
        container=container,
        track_id=number,
        codec=ARRAY_CODEC,
        profile=name,
        extradata=b"",
        width=form.shape[-1] if form.shape else 1,
        height=form.shape[-2] if len(form.shape) > 1 else 1,
        rotation_deg=0,
        mirrored=False,
        sar=one,
        pix_fmt=str(form),
        color_range=0,
        color_space=_UNSPECIFIED,
        color_primaries=_UNSPECIFIED,
        color_trc=_UNSPECIFIED,
        time_base=one,
        start_pts=0,
        end_pts=rows,
        rate=one,
        frame_count=rows,
        vfr=False,
        reorder_depth=0,
    )


def _tables(offset_bytes: int, row_bytes: int, rows: int) -> tuple[PacketTable, GopTable]:
    """Each row a packet; rows together until they fill a block, which is what has a checksum."""
    numbers = np.arange(rows, dtype=np.int64)
    packets = PacketTable(
        offset_bytes=offset_bytes + numbers * row_bytes,
        size_bytes=np.full(rows, row_bytes, np.int64),
        pts=numbers,
        dts=numbers,
        duration=np.ones(rows, np.int64),
        flags=np.full(rows, PacketFlag.KEY, np.uint8),
    )
    first = np.arange(0, rows, -(-ALIGN_BYTES // row_bytes), dtype=np.int64)
    sizes = np.diff(first, append=rows) * row_bytes
    return packets, GopTable(
        offset_bytes=offset_bytes + first * row_bytes,
        size_bytes=sizes,
        key_pts=first,
        first_packet=first,
        payload_bytes=sizes,
    )


def copy_rows(
    index: VideoIndex,
    extents: Sequence[Extent],
    data: Sequence[bytes | memoryview],
    pts: NDArray[np.int64],
    out: NDArray[np.generic],
) -> None:
    """Copy rows out of the blocks that hold them.

    Args:
        index: of the array.
        extents: the blocks, ascending.
        data: their bytes.
        pts: int64 [T], rising: which rows.
        out: [T, ...] of the rows' form, filled.

    Raises:
        CorruptDataError: a block's size is no number of rows, or a row is in none of them.
    """
    form = row_form(index.track.pix_fmt)
    if form is None:
        raise CorruptDataError(f"an array with the pixel format {index.track.pix_fmt!r}")
    dtype, copied = form.stored_dtype, 0
    for extent, got in zip(extents, data, strict=True):
        count, rest = divmod(len(got), form.size_bytes)
        if rest:
            raise CorruptDataError(
                f"block {extent.gop} has {len(got)} bytes, which are no rows of {form}"
            )
        first = int(index.gops.key_pts[extent.gop])
        low, high = np.searchsorted(pts, (first, first + count)).tolist()
        if low == high:
            continue
        rows = np.frombuffer(got, dtype).reshape(count, *form.shape)
        begin, end = int(pts[low]) - first, int(pts[high - 1]) - first + 1
        is_run = end - begin == high - low
        np.copyto(out[low:high], rows[begin:end] if is_run else rows[pts[low:high] - first])
        copied += high - low
    if copied != len(pts):
        raise CorruptDataError(f"{len(pts) - copied} rows are in none of the blocks of the array")
