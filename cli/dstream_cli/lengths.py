"""How long data are: time, or rows where they have no time base."""

from __future__ import annotations

from dstream.units import format_duration
from dstream_cli.plain import counted

RECIPE_OF_ROWS = "arrays"
"""The recipe whose streams are arrays. Their rows are counted as seconds are, one apart."""


def length(duration_s: float, rows_s: float = 0.0) -> str:
    """A length of so much time, of which ``rows_s`` are rows of arrays.

    >>> length(75), length(1234, 1234), length(75 + 3, 3), length(0)
    ('1 min 15 s', '1,234 rows', '1 min 15 s, 3 rows', '0.0 s')
    """
    time_s, rows = duration_s - rows_s, counted(round(rows_s), "row")
    if not rows_s:
        return format_duration(time_s)
    return rows if time_s < 1e-6 * duration_s else f"{format_duration(time_s)}, {rows}"
