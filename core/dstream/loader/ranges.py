"""Many ranges of whole numbers, written out as arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def written_out(
    first: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of each range, range after range: int64 [M], of which it is, and the number.

    Args:
        first: int64 [N] the first number of each.
        counts: int64 [N] how many it has, 0 for none.

    >>> written_out(np.array([5, 7, 1]), np.array([2, 0, 3]))
    (array([0, 0, 2, 2, 2]), array([5, 6, 1, 2, 3]))
    """
    which = np.repeat(np.arange(len(counts)), counts)
    begins = np.cumsum(counts) - counts
    return which, np.arange(len(which)) + np.repeat(first - begins, counts)
