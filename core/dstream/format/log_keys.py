"""Keys of the log: its roots, counted downwards."""

from __future__ import annotations

import re

LOG_PREFIX = "_ds/log/"
HINT_KEY = "_ds/hint"

_LAST_SEQ = 2**64 - 1
_LOG_KEY = re.compile(r"_ds/log/(\d{20})\.r")


def log_key(seq: int) -> str:
    """Key of root ``seq``. Counted downwards, so that the newest root is listed first.

    >>> log_key(0), log_key(1)
    ('_ds/log/18446744073709551615.r', '_ds/log/18446744073709551614.r')
    """
    return f"{LOG_PREFIX}{_LAST_SEQ - seq:020d}.r"


def log_seq(key: str) -> int | None:
    """The number of the root stored under ``key``, or None for a key that is no root's.

    >>> log_seq(log_key(7)), log_seq("_ds/log/x")
    (7, None)
    """
    match = _LOG_KEY.fullmatch(key)
    if match is None or int(match[1]) > _LAST_SEQ:
        return None
    return _LAST_SEQ - int(match[1])
