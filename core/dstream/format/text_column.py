"""A column of texts in little memory: compressed in blocks, one of which is unpacked to read one.

Ten million names as Python strings take a gigabyte and a half; here they take what they weigh
when zipped, and reading one costs some ten microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import zstandard
from numpy.typing import NDArray

BLOCK_ROWS = 256

_NULL = -1


class TextColumn:
    """N texts or None. Thread-safe, can be pickled.

    Args:
        chunks: consecutive rows: int32 [n] sizes in bytes, -1 for None, and the texts without
            gaps in UTF-8. All but the last have a multiple of ``BLOCK_ROWS`` rows.
    """

    __slots__ = ("_data", "_rows", "_starts")

    def __init__(self, chunks: Iterable[tuple[NDArray[np.int32], bytes]]) -> None:
        compressor = zstandard.ZstdCompressor(level=1)
        blocks: list[bytes] = []
        self._rows = 0
        for sizes, text in chunks:
            ends = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
            start = 0
            for row in range(0, len(sizes), BLOCK_ROWS):
                stop = int(ends[min(row + BLOCK_ROWS, len(sizes)) - 1])
                packed = sizes[row : row + BLOCK_ROWS].astype("<i4").tobytes() + text[start:stop]
                blocks.append(compressor.compress(packed))
                start = stop
            self._rows += len(sizes)
        # One piece: thousands of small ones would pin what was freed between them.
        self._data = b"".join(blocks)
        self._starts = np.cumsum([0, *map(len, blocks)])

    def __len__(self) -> int:
        return self._rows

    @property
    def size_bytes(self) -> int:
        """Bytes in memory."""
        return len(self._data) + self._starts.nbytes

    def __getitem__(self, row: int) -> str | None:
        if not 0 <= row < self._rows:
            raise IndexError(f"row {row} is outside range({self._rows})")
        number, within = divmod(row, BLOCK_ROWS)
        sizes, text = self._unpacked(number)
        if sizes[within] == _NULL:
            return None
        start = int(np.maximum(sizes[:within], 0).sum())
        return text[start : start + int(sizes[within])].decode()

    def __iter__(self) -> Iterator[str | None]:
        for number in range(len(self._starts) - 1):
            sizes, text = self._unpacked(number)
            start = 0
            for size in sizes.tolist():
                yield None if size == _NULL else text[start : start + size].decode()
                start += max(size, 0)

    def _unpacked(self, number: int) -> tuple[NDArray[np.int32], bytes]:
        rows = min(BLOCK_ROWS, self._rows - number * BLOCK_ROWS)
        start, stop = int(self._starts[number]), int(self._starts[number + 1])
        data = zstandard.decompress(self._data[start:stop])
        return np.frombuffer(data, dtype="<i4", count=rows), data[4 * rows :]
