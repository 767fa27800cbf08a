"""Whether this machine has what the tests marked ``gpu`` need."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def gpu_absence() -> str | None:
    """Why there is no GPU to test with; None where there is one. CUDA is not started."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver"
    return None
