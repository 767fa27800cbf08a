"""kvikio's CuFile without a GPU."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np


class StandIn:
    """What is used of CuFile, over plain files and memory of the host."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb")

    def __enter__(self) -> StandIn:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()

    def pread(self, memory: Any, size: int, file_offset: int) -> StandIn:
        assert file_offset % 4096 == 0
        data = np.frombuffer(os.pread(self._file.fileno(), size, file_offset), np.uint8)
        torch: Any = import_module("torch")
        memory[: len(data)].copy_(torch.from_numpy(data.copy()))
        self._got = len(data)
        return self

    def get(self) -> int:
        return self._got
