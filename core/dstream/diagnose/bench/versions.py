"""What a bench ran with."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from dstream import __version__
from dstream.loader.settings import default_workers


def versions() -> dict[str, Any]:
    """``dstream``, ``python``, ``av``, ``torch`` (None where it is not installed), ``cpus``."""
    return {
        "dstream": __version__,
        "python": platform.python_version(),
        "av": metadata.version("av"),
        "torch": _installed("torch"),
        "cpus": default_workers(),
    }


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
