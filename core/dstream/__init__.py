"""dstream: from a bucket of raw video to exact clips as tensors, with every request counted.

Importing this package is cheap: what its names need is imported when one is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dstream.api import Repo, clips, open
    from dstream.errors import (
        AlreadyExistsError,
        ConflictError,
        CorruptDataError,
        DstreamError,
        DstreamWarning,
        FormatVersionError,
        InvalidInputError,
        MediaError,
        MediaReason,
        NotFoundError,
        OutcomeUnknownError,
        PartialError,
        PermissionDeniedError,
        RefusedError,
        ShortReadError,
        SourceChangedError,
        StorageError,
        ThrottledError,
        UnsafeStoreError,
    )
    from dstream.loader import (
        Batch,
        Clip,
        Clips,
        Loader,
        LoaderReport,
        Mixture,
        RanksReport,
        collate,
        mix,
    )
    from dstream.measure import Meter
    from dstream.store.options import StoreOptions

__version__ = "0.1.0"

_HOMES = {
    "dstream.api": ("Repo", "clips", "open"),
    "dstream.errors": (
        "AlreadyExistsError", "ConflictError", "CorruptDataError", "DstreamError", "DstreamWarning",
        "FormatVersionError", "InvalidInputError", "MediaError", "MediaReason", "NotFoundError",
        "OutcomeUnknownError", "PartialError", "PermissionDeniedError", "RefusedError",
        "ShortReadError", "SourceChangedError", "StorageError", "ThrottledError",
        "UnsafeStoreError",
    ),
    "dstream.loader": (
        "Batch", "Clip", "Clips", "Loader", "LoaderReport", "Mixture", "RanksReport", "collate",
        "mix",
    ),
    "dstream.measure": ("Meter",),
    "dstream.store.options": ("StoreOptions",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AlreadyExistsError",
    "Batch",
    "Clip",
    "Clips",
    "ConflictError",
    "CorruptDataError",
    "DstreamError",
    "DstreamWarning",
    "FormatVersionError",
    "InvalidInputError",
    "Loader",
    "LoaderReport",
    "MediaError",
    "MediaReason",
    "Meter",
    "Mixture",
    "NotFoundError",
    "OutcomeUnknownError",
    "PartialError",
    "PermissionDeniedError",
    "RanksReport",
    "RefusedError",
    "Repo",
    "ShortReadError",
    "SourceChangedError",
    "StorageError",
    "StoreOptions",
    "ThrottledError",
    "UnsafeStoreError",
    "__version__",
    "clips",
    "collate",
    "mix",
    "open",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dstream' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
