"""Encoding from many threads at once: codecs that share a zstd context kill the process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dstream.format.columns import pack


def test_columns_pack_alike_from_many_threads() -> None:
    generator = np.random.default_rng(3)
    columns = [generator.integers(-(2**40), 2**40, 20_000) for _ in range(8)]
    alone = [pack(column) for column in columns]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(pack, columns * 8))
    assert together == alone * 8
