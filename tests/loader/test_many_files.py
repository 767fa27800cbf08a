"""One clip from each of many small files: one request a clip, one for each group of files."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from dstream.store.opening import open_store
from loader_data import new_url

FILES = 2000
BENCH = Path(__file__).parents[2] / "bench" / "many_files.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("many_files", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["many_files"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def repository(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    source, repository = new_url(), new_url()
    video = bench.tiny_video(tmp_path_factory.mktemp("many") / "video.mp4")
    store = open_store(source)
    for number in range(FILES):
        store.put(f"{number // 100:03d}/{number:06d}.mp4", bench.numbered(video, number))
    assert bench.publish(repository, source, video) == 8
    return repository


def test_every_file_costs_one_request_and_every_group_one(bench: Any, repository: str) -> None:
    *_, last = bench.measure(repository)
    assert last["clips"] == last["data_requests"] == FILES
    assert last["table_requests"] == 1 + 3 + 8  # the manifest, the tables, the groups


def test_packet_tables_beyond_their_budget_are_read_again(bench: Any, repository: str) -> None:
    *_, last = bench.measure(repository, table_cache_bytes=1 << 17, most_clips=320)
    assert last["clips"] == 320
    assert last["table_requests"] > 4 * 8
