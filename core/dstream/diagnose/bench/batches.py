"""What is in a batch of any loader: how many samples, how many bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

_DEEPEST = 8
"""Nested containers beyond are not looked into: a batch may hold itself."""


def samples_of(batch: Any) -> tuple[int, str] | None:
    """Samples in a batch, and what of it told so; None where nothing does.

    The length of an array or tensor is that of its first axis. A mapping, tuple or list of arrays
    has as many samples as its first array; any other list is a list of samples. An object with a
    length, such as dstream's ``Batch``, has that many.

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
    items = batch.items() if isinstance(batch, Mapping) else _numbered(batch)
    for name, value in items:
        if (length := _first_axis(value)) is not None:
            return length, f"the first axis of [{name!r}]"
    if isinstance(batch, Mapping):
        sized = ((name, value) for name, value in batch.items() if isinstance(value, list | tuple))
        return next(((len(value), f"the length of [{name!r}]") for name, value in sized), None)
    return (len(batch), "its length") if hasattr(batch, "__len__") else None


def _first_axis(value: Any) -> int | None:
    shape = getattr(value, "shape", None)
    return int(shape[0]) if isinstance(shape, Sequence) and shape else None


def _numbered(batch: Any) -> Any:
    return enumerate(batch) if isinstance(batch, list | tuple) else ()


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
