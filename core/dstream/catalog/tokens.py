"""Pin tokens: one line of text that lets any process read exactly what was pinned. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dstream.errors import InvalidInputError

_TOKEN = re.compile(
    r"(?:(?P<url>.+)@)?(?P<seq>\d{1,19})#(?P<sha256>[0-9a-f]{64})(?:&pin=(?P<pin>[A-Za-z0-9._-]+))?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """``<repository's url>@<root>#<sha256 of the root>&pin=<id>``."""

    url: str
    seq: int
    sha256: str
    """Of the root as stored: whoever reads it needs to trust nothing else."""
    pin_id: str = ""

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read a token; the url and the pin may be left out.

        Raises:
            InvalidInputError: it is none.
        """
        token = cls.find(text)
        if token is None:
            raise InvalidInputError(
                f"not a pin token: {text[:100]!r}; it looks like s3://lab/repo@7#<64 hex digits>"
                "&pin=<id> and is printed by: dstream pin"
            )
        return token

    @classmethod
    def find(cls, text: str) -> Token | None:
        """The token that ``text`` is, or None: then it may be a url."""
        match = _TOKEN.fullmatch(text)
        if match is None:
            return None
        return cls(match["url"] or "", int(match["seq"]), match["sha256"], match["pin"] or "")

    def __str__(self) -> str:
        pin = f"&pin={self.pin_id}" if self.pin_id else ""
        return f"{self.url}@{self.seq}#{self.sha256}{pin}"
