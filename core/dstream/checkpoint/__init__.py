"""Checkpoints as generations: published whole, fetched whole, saved and loaded by torch.

``publish`` and ``fetch`` need no torch; it is imported when ``save``, ``load``,
``StorageWriter`` or ``StorageReader`` is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dstream.checkpoint.fetch import Fetched, fetch
from dstream.checkpoint.layout import LAYOUTS
from dstream.checkpoint.progress import CopyProgress
from dstream.checkpoint.publish import Published, publish

if TYPE_CHECKING:
    from dstream.checkpoint.dcp_reader import StorageReader
    from dstream.checkpoint.dcp_writer import StorageWriter
    from dstream.checkpoint.state import Loaded, load, save

__all__ = [
    "LAYOUTS",
    "CopyProgress",
    "Fetched",
    "Loaded",
    "Published",
    "StorageReader",
    "StorageWriter",
    "fetch",
    "load",
    "publish",
    "save",
]

_WITH_TORCH = {
    "Loaded": "state",
    "load": "state",
    "save": "state",
    "StorageReader": "dcp_reader",
    "StorageWriter": "dcp_writer",
}


def __getattr__(name: str) -> object:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_WITH_TORCH[name]}"), name)
    globals()[name] = value
    return value
