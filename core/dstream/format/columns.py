"""Integer columns as few bytes: predict, difference, split into byte planes, then zstd.

Packet tables are long and regular: constant durations, offsets that follow from sizes, pts that
follow dts. A column is stored as the difference from a prediction, differenced zero to two
times. A column that is then linear costs no bytes at all; any other is stored as zigzag numbers
of the smallest width, one byte plane after another, so that zstd sees runs of like bytes.
All arithmetic wraps at 64 bits, so every int64 column comes back exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import zstandard
from numpy.typing import NDArray

from dstream.errors import CorruptDataError

Int64s = NDArray[np.int64]

MAX_ROWS = 24 * 3600 * 240
"""More packets than this in one video is taken for damage: 24 hours at 240 frames a second."""

_WIDTHS = (1, 2, 4, 8)
_MAX_ORDER = 2


@dataclass(frozen=True, slots=True)
class PackedColumn:
    """One column, ready to be written."""

    rows: int
    order: int
    """How often the residuals were differenced."""
    seeds: tuple[int, ...]
    """First value of each differencing step, outermost first."""
    width: int
    """Bytes a number; 0 when every difference is ``fill``."""
    fill: int
    """The constant difference where ``width`` is 0."""
    planes: bytes
    """``width`` byte planes of ``rows - order`` zigzag numbers."""

    def spec(self) -> dict[str, object]:
        """What a reader needs besides ``planes``; JSON values only."""
        return {
            "rows": self.rows,
            "order": self.order,
            "seeds": list(self.seeds),
            "width": self.width,
            "fill": self.fill,
        }


def pack(values: Int64s) -> PackedColumn:
    """The shortest coding of a column, judged by a quick trial compression.

    Args:
        values: int64 [N], any values.
    """
    # One compressor a call: they must not be shared between threads, which crashes the process.
    trial = zstandard.ZstdCompressor(level=1, write_content_size=False)
    residual = np.ascontiguousarray(values, dtype=np.int64)
    best = _pack_order(residual, len(values), 0, ())
    best_size = len(trial.compress(best.planes))
    seeds: tuple[int, ...] = ()
    for order in range(1, _MAX_ORDER + 1):
        if best.width == 0:
            break
        seeds = (*seeds, int(residual[0]))
        residual = np.diff(residual)
        packed = _pack_order(residual, len(values), order, seeds)
        size = len(trial.compress(packed.planes))
        if packed.width == 0 or size < best_size:
            best, best_size = packed, size
    return best


def _pack_order(residual: Int64s, rows: int, order: int, seeds: tuple[int, ...]) -> PackedColumn:
    if len(residual) == 0 or (residual == residual[0]).all():
        fill = int(residual[0]) if len(residual) else 0
        return PackedColumn(rows, order, seeds, 0, fill, b"")
    zigzag = ((residual << 1) ^ (residual >> 63)).view(np.uint64)
    top = int(zigzag.max())
    width = next(w for w in _WIDTHS if top < 1 << (8 * w))
    planes = zigzag.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T
    return PackedColumn(rows, order, seeds, width, 0, np.ascontiguousarray(planes).tobytes())


def planes_size_bytes(spec: Mapping[str, object]) -> int:
    """How many bytes of planes follow for a column with this spec.

    Raises:
        CorruptDataError: the spec is not one that :func:`pack` writes.
    """
    rows, order, width = (_count(spec, name) for name in ("rows", "order", "width"))
    seeds = spec.get("seeds")
    if (
        rows > MAX_ROWS
        or order > _MAX_ORDER
        or width not in (0, *_WIDTHS)
        or not isinstance(seeds, list)
        or len(seeds) != order
        or order > rows
    ):
        raise CorruptDataError(f"impossible column in a packet table: {dict(spec)!r:.200}")
    for number in (spec.get("fill", 0), *seeds):
        _signed(number)
    return width * (rows - order)


def rows_of(specs: Mapping[str, Mapping[str, object]]) -> int:
    """The number of rows that all columns of one table have; nothing is allocated to tell.

    Raises:
        CorruptDataError: they differ, or a spec is not one that :func:`pack` writes.
    """
    lengths = {name: _count(spec, "rows") for name, spec in specs.items()}
    if len(set(lengths.values())) != 1:
        raise CorruptDataError(f"index entry: columns of one table differ in length: {lengths}")
    return next(iter(lengths.values()))


def unpack(spec: Mapping[str, object], planes: memoryview) -> Int64s:
    """The column that :func:`pack` got.

    Args:
        spec: what ``PackedColumn.spec`` gave.
        planes: exactly ``planes_size_bytes(spec)`` bytes.

    Raises:
        CorruptDataError: spec and bytes do not fit each other.
    """
    if len(planes) != planes_size_bytes(spec):
        raise CorruptDataError("a packet table's column has the wrong length")
    rows, order, width = (_count(spec, name) for name in ("rows", "order", "width"))
    count = rows - order
    if width == 0:
        values = np.full(count, _signed(spec.get("fill", 0)), dtype=np.int64)
    else:
        split = np.frombuffer(planes, dtype=np.uint8).reshape(width, count)
        zigzag = np.ascontiguousarray(split.T).view(f"<u{width}").reshape(-1).astype(np.uint64)
        values = (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64)
    seeds = spec["seeds"]
    for seed in reversed(seeds if isinstance(seeds, list) else []):
        values = np.concatenate(([np.int64(_signed(seed))], values)).astype(np.int64)
        np.cumsum(values, out=values)
    return values


def _count(spec: Mapping[str, object], name: str) -> int:
    value = spec.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CorruptDataError(f"a packet table's column has a bad {name}: {value!r:.40}")
    return value


def _signed(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise CorruptDataError(f"a packet table's column holds an impossible number: {value!r:.40}")
    return value
