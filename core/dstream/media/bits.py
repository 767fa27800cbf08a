"""Fields of bits in the headers of coded video."""

from __future__ import annotations

_LONGEST_CODE_BITS = 32


class Bits:
    """Reads bits from the highest on.

    >>> bits = Bits(bytes([0b1_010_0011, 0b1_0000000]))
    >>> bits.number(), bits.number(), bits.number()
    (0, 1, 6)
    """

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def take(self, count: int) -> int:
        """An unsigned number of ``count`` bits."""
        if count > self._left:
            raise ValueError("the header is cut")
        self._left -= count
        return self._value >> self._left & ((1 << count) - 1)

    def number(self) -> int:
        """An unsigned Exp-Golomb code (9.1); of signed ones only the length matters here."""
        zeros = 0
        while not self.take(1):
            zeros += 1
            if zeros > _LONGEST_CODE_BITS:
                raise ValueError("no Exp-Golomb code is that long")
        return (1 << zeros) - 1 + self.take(zeros)

    def signed(self) -> int:
        """A signed Exp-Golomb code (9.1.1)."""
        code = self.number()
        return (code + 1) // 2 if code % 2 else -(code // 2)
