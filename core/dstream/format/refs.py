"""How one stored object names another: by key, size and hash."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dstream.errors import CorruptDataError

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An immutable object of the repository, with what its bytes must be."""

    key: str
    """Relative to the repository's root."""
    size_bytes: int
    sha256: str
    """64 lower-case hex digits."""

    def as_doc(self) -> dict[str, object]:
        """The JSON form: ``{key, size, sha256}``."""
        return {"key": self.key, "sha256": self.sha256, "size": self.size_bytes}

    @classmethod
    def from_doc(cls, doc: object, where: str) -> ObjectRef:
        """Read the JSON form.

        Raises:
            CorruptDataError: a field is missing or of the wrong kind; ``where`` names the place.
        """
        if isinstance(doc, Mapping):
            key, size, sha256 = doc.get("key"), doc.get("size"), doc.get("sha256")
            if (
                isinstance(key, str)
                and type(size) is int
                and size >= 0
                and isinstance(sha256, str)
                and _SHA256.fullmatch(sha256)
            ):
                return cls(key, size, sha256)
        raise CorruptDataError(f"{where}: not an object reference: {str(doc)[:200]}", where=where)
