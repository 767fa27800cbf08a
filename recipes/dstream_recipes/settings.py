"""Recipe parameters: text or numbers by name, turned into a frozen dataclass and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, TypeVar

from dstream.errors import InvalidInputError
from dstream.recipe import Label

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S", bound="DataclassInstance")

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


def with_params(recipe: str, settings: S, params: Mapping[str, Label]) -> S:
    """A copy of ``settings`` with the named fields set; each value takes its field's type.

    Raises:
        InvalidInputError: an unknown name, or a value that is not of the field's type. What
            the dataclass itself refuses in ``__post_init__`` passes through.
    """
    current = {field.name: getattr(settings, field.name) for field in fields(settings)}
    changes: dict[str, Label] = {}
    for name, value in params.items():
        if name not in current:
            raise InvalidInputError(
                f"recipe {recipe!r} has no parameter {name!r}; it takes {', '.join(current)}",
                recipe=recipe,
                parameter=name,
            )
        changes[name] = _as_type_of(current[name], value, name)
    return replace(settings, **changes)


def as_params(settings: DataclassInstance) -> dict[str, Label]:
    """Every field by name, for the manifest: later defaults do not change old data sets."""
    return asdict(settings)


def _as_type_of(example: Label, value: Label, name: str) -> Label:
    try:
        if isinstance(example, bool):
            return _as_bool(value)
        if isinstance(example, int):
            return _as_int(value)
        if isinstance(example, float):
            return float(value)
        return str(value)
    except ValueError as error:
        wanted = type(example).__name__
        raise InvalidInputError(
            f"recipe parameter {name}={value}: expected {_TYPE_NAMES[wanted]}", parameter=name
        ) from error


_TYPE_NAMES = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}


def _as_bool(value: Label) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ValueError(text)
    return text in _TRUE


def _as_int(value: Label) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(str(value))
    return int(value)
