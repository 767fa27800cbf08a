"""What is in a batch of any loader: how many samples, how many bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import index
from typing import Any, SupportsIndex

_DEEPEST = 8
"""Nested containers beyond are not looked into: a batch may hold itself."""


def samples_of(batch: Any) -> tuple[int, str] | None:
    """Samples in a batch, and what of it told so; None where nothing does.

    The length of an array or tensor is that of its first axis. A mapping, tuple or list of arrays
    has as many samples as its first array, in nested mappings as well; any other list is a list of
    samples. An object with a length, such as dstream's ``Batch``, has that many.

    >>> import numpy as np
    >>> video = np.zeros((8, 16, 3, 32, 32), np.uint8)
    >>> samples_of({"video": video, "label": [1] * 8}), samples_of([video, np.zeros(8)])
    ((8, "the first axis of ['video']"), (8, 'the first axis of [0]'))
    >>> samples_of([{"frame": 1}, {"frame": 2}]), samples_of("text")
    ((2, 'its length'), None)
    """
    if isinstance(batch, str | bytes | bytearray | memoryview):
        return None
    if (length := _first_axis(batch)) is not None:
        return length, "its first axis"
    held = batch if isinstance(batch, Mapping | list | tuple) else ()
    for where, value in _arrays(held, _DEEPEST):
        if (length := _first_axis(value)) is not None:
            return length, f"the first axis of {where}"
    if isinstance(batch, Mapping):
        sized = ((name, value) for name, value in batch.items() if isinstance(value, list | tuple))
        return next(((len(value), f"the length of [{name!r}]") for name, value in sized), None)
    try:
        return len(batch), "its length"
    except Exception:  # without a length, or it fails, as that of an array without axes
        return None


def _first_axis(value: Any) -> int | None:
    shape = getattr(value, "shape", None)
    first = shape[0] if isinstance(shape, Sequence) and shape else None
    return index(first) if isinstance(first, SupportsIndex) else None


def _arrays(batch: Any, deeper: int) -> Iterator[tuple[str, Any]]:
    """What a batch holds, then what mappings and tuples in a mapping hold."""
    nested = isinstance(batch, Mapping)
    items: Iterable[tuple[Any, Any]] = batch.items() if nested else enumerate(batch)
    named = [(f"[{name!r}]", value) for name, value in items]
    yield from named
    for name, value in named if nested and deeper else ():
        if isinstance(value, Mapping | tuple):
            yield from ((name + where, inner) for where, inner in _arrays(value, deeper - 1))


def bytes_of(batch: Any) -> int | None:
    """Bytes of the arrays, tensors and byte strings in a batch; None where there are none.

    >>> import numpy as np
    >>> bytes_of({"video": np.zeros((2, 3), np.uint8), "name": ["a", "b"]}), bytes_of([1, 2])
    (6, None)
    """
    sizes = _sizes(batch, _DEEPEST)
    return sum(sizes) if sizes else None


def _sizes(value: Any, deeper: int) -> list[int]:
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return [size]
    if isinstance(value, bytes | bytearray):
        return [len(value)]
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    elif is_dataclass(value) and not isinstance(value, type):
        inner = (getattr(value, spec.name) for spec in fields(value))
    return [size for item in inner for size in _sizes(item, deeper - 1)] if deeper else []
