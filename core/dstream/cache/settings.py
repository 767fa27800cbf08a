"""How a user names a cache: arguments first, then the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dstream.cache.cache import ExtentCache
from dstream.clock import Clock
from dstream.errors import InvalidInputError
from dstream.measure import Meter
from dstream.units import parse_bytes

CacheWish = str | os.PathLike[str] | Literal[False] | None
"""A directory, False for no cache, or None for what the environment says."""
CacheBytes = int | str | None

DIRECTORY_VARIABLE, BYTES_VARIABLE = "DSTREAM_CACHE", "DSTREAM_CACHE_BYTES"


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Where a cache is and what it may take."""

    directory: Path
    budget_bytes: int | None
    """None: what was set last."""

    def open(self, label: str, meter: Meter, clock: Clock) -> ExtentCache:
        """The cache, for the data set that people call ``label``.

        Raises:
            InvalidInputError: the directory is a file, or no budget was ever set.
            FormatVersionError: a newer dstream made the cache.
        """
        return ExtentCache(self.directory, self.budget_bytes, label=label, meter=meter, clock=clock)


def cache_settings(
    cache: CacheWish, cache_bytes: CacheBytes, environment: Mapping[str, str]
) -> CacheSettings | None:
    """What the arguments and the environment ask for; None for no cache.

    Args:
        cache: the directory.
        cache_bytes: its budget, as a number or as ``200GB``.
        environment: ``DSTREAM_CACHE`` and ``DSTREAM_CACHE_BYTES`` stand in for what is None.

    Raises:
        InvalidInputError: a budget without a directory, or one that is no size.

    >>> cache_settings(None, None, {"DSTREAM_CACHE": "/nvme/c", "DSTREAM_CACHE_BYTES": "1GB"})
    CacheSettings(directory=PosixPath('/nvme/c'), budget_bytes=1000000000)
    """
    directory = environment.get(DIRECTORY_VARIABLE) if cache is None else cache
    if not directory:
        if cache_bytes is not None and cache is None:
            raise InvalidInputError(f"cache_bytes={cache_bytes!r} needs cache= or DSTREAM_CACHE")
        return None
    if "://" in os.fspath(directory):
        raise InvalidInputError(
            f"the cache is a directory of this machine's own disk, not a URL: got {directory!r}"
        )
    size = cache_bytes if cache_bytes is not None else environment.get(BYTES_VARIABLE) or None
    budget = parse_bytes(size) if isinstance(size, str) else size
    if budget is not None and budget < 1:
        raise InvalidInputError(f"cache_bytes must be above 0, got {size!r}")
    return CacheSettings(Path(directory).expanduser().absolute(), budget)
