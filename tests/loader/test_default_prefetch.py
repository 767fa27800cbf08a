"""How many batches are decoded ahead when nobody says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.loader.settings import LoaderSettings, default_prefetch


@given(st.integers(1, 512), st.integers(1, 256))
def test_small_batches_leave_no_thread_without_a_clip(batch_size: int, workers: int) -> None:
    prefetch = default_prefetch(batch_size, workers)
    assert 2 <= prefetch <= 8
    assert prefetch == 8 or prefetch * batch_size >= 2 * workers + 2
    assert prefetch == 2 or (prefetch - 1) * batch_size < 2 * workers + 2


@pytest.mark.parametrize(
    ("batch_size", "workers", "device", "expected"),
    [(1, 2, None, 6), (8, 2, None, 2), (4, 15, "cpu", 8), (1, 64, "cpu", 8), (1, 64, "cuda:0", 2)],
)
def test_default_prefetch_of(
    batch_size: int, workers: int, device: str | None, expected: int
) -> None:
    assert default_prefetch(batch_size, workers, device) == expected


_WITHOUT_PREFETCH: dict[str, Any] = {"workers": 2}


def test_settings_have_no_other_default() -> None:
    with pytest.raises(TypeError, match="prefetch"):
        LoaderSettings(**_WITHOUT_PREFETCH)
