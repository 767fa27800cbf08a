"""Taking typed fields out of a JSON object that came from outside, and keeping the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from dstream.errors import CorruptDataError

T = TypeVar("T", str, int, float, bool)


class Fields:
    """The fields of one JSON object. What is never taken is returned by :meth:`rest`."""

    def __init__(self, document: object, where: str) -> None:
        if not isinstance(document, Mapping):
            raise CorruptDataError(
                f"{where}: got a {type(document).__name__}, expected a JSON object", where=where
            )
        self._left = dict(document)
        self._where = where

    def take(self, name: str, kind: type[T], default: T | None = None) -> T:
        """The field as ``kind``; ``default`` where it is absent, if one is given."""
        value = self._left.pop(name, default)
        return self._checked(name, value, kind)

    def take_optional(self, name: str, kind: type[T]) -> T | None:
        """The field as ``kind``, or None where it is absent or null."""
        value = self._left.pop(name, None)
        return None if value is None else self._checked(name, value, kind)

    def take_list(self, name: str) -> list[object]:
        """The field as a list; empty where it is absent."""
        value = self._left.pop(name, [])
        if not isinstance(value, list):
            raise self._fault(name, value, "a list")
        return value

    def take_map(self, name: str) -> dict[str, object]:
        """The field as an object; empty where it is absent."""
        value = self._left.pop(name, {})
        if not isinstance(value, dict):
            raise self._fault(name, value, "an object")
        return value

    def rest(self) -> dict[str, object]:
        """Every field that was not taken, to be written back unchanged."""
        return dict(self._left)

    def _checked(self, name: str, value: object, kind: type[T]) -> T:
        # bool is an int to Python, not to JSON; whole floats are written without a point.
        if kind is float and type(value) is int:
            return kind(value)
        if type(value) is int and value < 0:
            raise self._fault(name, value, "no negative number")
        if type(value) is not kind:
            raise self._fault(name, value, kind.__name__)
        return value

    def _fault(self, name: str, value: object, expected: str) -> CorruptDataError:
        shown = str(value)[:100]
        return CorruptDataError(
            f"{self._where}: field {name!r} is {shown!r}, expected {expected}",
            where=self._where,
            field=name,
        )
