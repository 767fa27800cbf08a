"""Who commits, for people."""

from __future__ import annotations

import getpass
import platform


def default_author() -> str:
    """``user@host`` as far as the system knows them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = "unknown"
    return f"{user}@{platform.node() or 'unknown'}"
