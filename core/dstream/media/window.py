"""Ranges of a reader, each byte fetched at most once, for parsers that look around."""

from __future__ import annotations

from dstream.media.reader import RandomReader


class Window:
    """Remembers what was read. For headers and tables; all of it stays in memory."""

    def __init__(self, reader: RandomReader) -> None:
        self.reader = reader
        self.size_bytes = reader.size_bytes
        self._spans: list[tuple[int, bytes]] = []

    def has(self, start_byte: int, stop_byte: int) -> bool:
        """Whether the range is known already."""
        return any(
            start <= start_byte and stop_byte <= start + len(data) for start, data in self._spans
        )

    def get(self, start_byte: int, stop_byte: int, *, ahead_bytes: int = 0) -> bytes:
        """The bytes of a range, cut at the end of the file.

        Args:
            start_byte: first byte.
            stop_byte: one past the last.
            ahead_bytes: when something must be fetched, fetch this much more behind it.
        """
        stop_byte = min(stop_byte, self.size_bytes)
        if stop_byte <= start_byte:
            return b""
        best = max(
            (span for span in self._spans if span[0] <= start_byte < span[0] + len(span[1])),
            key=lambda span: span[0] + len(span[1]),
            default=None,
        )
        if best is not None and best[0] + len(best[1]) >= stop_byte:
            return best[1][start_byte - best[0] : stop_byte - best[0]]
        fetch_from = start_byte if best is None else best[0] + len(best[1])
        fetched = self.reader.read(fetch_from, min(self.size_bytes, stop_byte + ahead_bytes))
        if best is None:
            self._spans.append((start_byte, fetched))
            return fetched[: stop_byte - start_byte]
        self._spans.remove(best)
        joined = best[1] + fetched
        self._spans.append((best[0], joined))
        return joined[start_byte - best[0] : stop_byte - best[0]]

    def known(self, start_byte: int, stop_byte: int) -> bytes:
        """As much of a range as is known from its start on, without fetching."""
        for start, data in self._spans:
            if start <= start_byte < start + len(data):
                return data[start_byte - start : stop_byte - start]
        return b""
