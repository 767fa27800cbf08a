"""Weights of a separable resize, by the kernels that FFmpeg's scaler uses. Pure.

A picture [H, W] of size (h, w) is ``weights(H, h) @ picture @ weights(W, w).T``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kernel = Literal["area", "bicubic", "linear"]
_SHARPNESS = -0.6
"""libswscale's default of its bicubic kernel (Keys with B = 0, C = 0.6)."""


@lru_cache(maxsize=64)
def weights(source: int, target: int, kernel: Kernel) -> NDArray[np.float32]:
    """float32 [target, source]: how much of each source sample is in each target sample.

    Args:
        source: samples.
        target: samples.
        kernel: ``area``: shares of the interval that a target sample covers. ``bicubic`` and
            ``linear`` are stretched when there are fewer target samples.

    >>> weights(4, 2, "area").tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]
    """
    scale = source / target
    rows = np.arange(target)[:, None]
    if kernel == "area":
        left = np.arange(source)[None]
        found = np.minimum(left + 1, (rows + 1) * scale) - np.maximum(left, rows * scale)
        result = np.clip(found, 0, None)
    else:
        stretch = max(scale, 1.0)
        reach = int(np.ceil((2 if kernel == "bicubic" else 1) * stretch)) + 1
        centre = (rows + 0.5) * scale - 0.5
        samples = np.floor(centre).astype(np.int64) + np.arange(-reach, reach + 1)[None]
        values = _value(np.abs(centre - samples) / stretch, kernel)
        result = np.zeros((target, source))
        # What lies outside counts as the sample at the border.
        np.add.at(result, (rows, np.clip(samples, 0, source - 1)), values)
    result /= result.sum(axis=1, keepdims=True)
    shares: NDArray[np.float32] = result.astype(np.float32)
    shares.setflags(write=False)
    return shares


def _value(distance: NDArray[np.float64], kernel: Kernel) -> NDArray[np.float64]:
    if kernel == "linear":
        return np.clip(1 - distance, 0, None)
    a, d = _SHARPNESS, distance
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * (d**3 - 5 * d**2 + 8 * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
