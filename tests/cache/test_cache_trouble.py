"""What goes wrong on a node: killed writers, rot, full and vanished disks; with real processes.

Every reader of ``cache_workers`` checks each byte that it gets, so a run that ends is a right one.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import cache_workers
from cache_workers import EXTENT_BYTES, OBJECT_EXTENTS, Reader, extent, identity, used_bytes
from dstream.cache.cache import ExtentCache
from dstream.cache.folder import CacheFolder
from dstream.cache.layout import scope_of, segment_bytes
from dstream.cache.record import ByteRange
from dstream.clock import SystemClock
from dstream.units import MIB

TESTS = Path(cache_workers.__file__).parent
BUDGET = 96 * MIB  # segments of 3 MiB: one holds all extents of an object
LIMIT_S = 120


def start(role: str, *arguments: object, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-m", "cache_workers", role, *map(str, arguments)]
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(
        command, text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def end(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a reader counted. Fails when it saw a wrong byte, or hangs."""
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    counted: dict[str, Any] = json.loads(out)
    return counted


def killed(role: str, *arguments: object) -> None:
    process = start(role, *arguments)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == -signal.SIGKILL


def flip(path: Path, generator: random.Random, bits: int) -> None:
    size_bytes = path.stat().st_size
    with path.open("r+b") as file:
        for _ in range(bits if size_bytes else 0):
            place = generator.randrange(size_bytes)
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 1 << generator.randrange(8)]))


def files_of(directory: Path, suffix: str) -> list[Path]:
    return sorted((directory / "segments").glob(f"*{suffix}"))


def test_processes_share_a_cache_while_one_is_killed_and_bits_flip(tmp_path: Path) -> None:
    budget = 16 * MIB  # of 20 MB of extents
    dying = start("die_while_writing", tmp_path, budget, 40)
    while not files_of(tmp_path, ".data") and dying.poll() is None:
        pass
    readers = [start("many_reads", tmp_path, budget, seed, 300) for seed in range(4)]
    dying.communicate(timeout=LIMIT_S)
    assert dying.returncode == -signal.SIGKILL
    generator, peak_bytes = random.Random(1), 0
    while any(reader.poll() is None for reader in readers):
        time.sleep(0.01)
        for path in [*files_of(tmp_path, ".data"), *files_of(tmp_path, ".index")]:
            with suppress(FileNotFoundError):  # evicted
                flip(path, generator, 1)
        peak_bytes = max(peak_bytes, used_bytes(tmp_path))
    counted = [end(reader) for reader in readers]
    assert sum(counts["sums"]["cache.hits"] for counts in counted) > 0
    assert any(counts["rot"] for counts in counted)
    assert not any(counts["off"] for counts in counted)
    assert max(peak_bytes, used_bytes(tmp_path)) <= budget + segment_bytes(budget)


@pytest.mark.parametrize("after", [1, 2, 30])
def test_a_writer_killed_in_mid_write_leaves_nothing_behind(tmp_path: Path, after: int) -> None:
    killed("die_while_writing", tmp_path, BUDGET, after)
    reader = Reader(tmp_path, None)
    reader.read(*range(OBJECT_EXTENTS))
    assert reader.fetched == list(range(after - 1, OBJECT_EXTENTS))
    reader.read(*range(OBJECT_EXTENTS))
    assert len(reader.fetched) == OBJECT_EXTENTS - after + 1
    assert len(files_of(tmp_path, ".data")) == 1  # the dead one's segment went on
    assert reader.events("cache-rot") == {}


@pytest.mark.parametrize("after", [1, 30])
def test_a_process_killed_while_it_copies_leaves_whole_extents(tmp_path: Path, after: int) -> None:
    budget, extents = 10 * MIB, 400  # 16 MB
    killed("die_while_copying", tmp_path, budget, extents, after)
    assert used_bytes(tmp_path) <= budget
    reader = Reader(tmp_path, None)
    reader.read(*range(extents))  # checks every byte
    assert 150 < extents - len(reader.fetched) < extents
    assert reader.events("cache-rot") == {}


@pytest.mark.parametrize("seed", range(6))
def test_flipped_bits_cost_misses_and_never_a_wrong_byte(tmp_path: Path, seed: int) -> None:
    Reader(tmp_path, BUDGET).read(*range(OBJECT_EXTENTS))
    generator = random.Random(seed)
    suffix = (".data", ".index")[seed % 2]
    for path in files_of(tmp_path, suffix):
        flip(path, generator, 8)
    reader = Reader(tmp_path, None)
    reader.read(*range(OBJECT_EXTENTS))
    assert 0 < len(reader.fetched) <= 8
    assert sum(reader.events("cache-rot").values()) > 0
    again = Reader(tmp_path, None)
    again.read(*range(OBJECT_EXTENTS))
    assert again.fetched == []


def test_files_full_of_noise_are_no_cache(tmp_path: Path) -> None:
    Reader(tmp_path, BUDGET).read(*range(OBJECT_EXTENTS))
    noise = random.Random(0)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(noise.randbytes(min(path.stat().st_size, 100_000)))
    reader = Reader(tmp_path, BUDGET)
    for _ in range(2):
        reader.read(*range(OBJECT_EXTENTS))
    assert len(reader.fetched) == OBJECT_EXTENTS


@pytest.mark.parametrize("text", [b"", b"noise", b"9999999999", b"0000000000"])
def test_numbers_go_on_whatever_the_lock_file_says(tmp_path: Path, text: bytes) -> None:
    Reader(tmp_path, 32 * MIB).read(*range(OBJECT_EXTENTS))
    (tmp_path / "lock").write_bytes(text)
    reader = Reader(tmp_path, None)
    reader.read(*range(OBJECT_EXTENTS), key="other")
    reader.read(*range(OBJECT_EXTENTS), key="other")
    assert len(reader.fetched) == OBJECT_EXTENTS
    numbers = [path.name[:10] for path in files_of(tmp_path, ".data")]
    assert len(set(numbers)) == len(numbers) == 5


def test_a_directory_that_vanishes_is_let_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "c"
    reader, other = Reader(directory, BUDGET), Reader(directory, BUDGET)
    reader.read(*range(8))
    other.read(*range(8))
    shutil.rmtree(directory)
    for _ in range(2):
        reader.read(*range(10))
        other.read(*range(8))
    assert reader.events("cache-off") == {"vanished": 1}
    told = [record.getMessage() for record in caplog.records]
    assert [f"{directory} (vanished: " in one for one in told] == [True, True]  # once each
    assert not directory.exists()


def test_segments_deleted_under_a_reader_are_misses(tmp_path: Path) -> None:
    reader = Reader(tmp_path, BUDGET)
    reader.read(*range(8))
    for path in (tmp_path / "segments").iterdir():
        path.unlink()
    reader.read(*range(8))
    reader.read(*range(8))
    assert reader.fetched == [*range(8)] * 2
    assert reader.events("cache-off") == {}


def test_a_newer_format_that_comes_meanwhile_turns_writing_off(tmp_path: Path) -> None:
    reader = Reader(tmp_path, BUDGET)
    reader.read(*range(4))
    (tmp_path / "cache.json").write_text('{"format_version": 2, "budget_bytes": 5}')
    for _ in range(2):
        reader.read(*range(8))
    assert reader.fetched == [*range(4), *range(4, 8), *range(4, 8)]
    assert reader.events("cache-off") == {"newer-format": 1}


def test_what_is_left_of_a_segment_half_deleted_takes_no_room(tmp_path: Path) -> None:
    budget = 16 * MIB
    reader = Reader(tmp_path, budget)
    reader.read(*range(20))
    del reader
    for path in files_of(tmp_path, ".data"):
        path.unlink()
    assert files_of(tmp_path, ".index")
    reader = Reader(tmp_path, None)
    reader.read(*range(20))
    assert [p.stem for p in files_of(tmp_path, ".index")] == [
        p.stem for p in files_of(tmp_path, ".data")
    ]


def test_a_data_set_is_held_although_somebody_looks_at_that_moment(tmp_path: Path) -> None:
    Reader(tmp_path, BUDGET, label="made").read(0)
    looker = (tmp_path / "users" / scope_of("made")).open()
    fcntl.flock(looker, fcntl.LOCK_EX)

    class Waiting(SystemClock):
        def sleep(self, seconds: float) -> None:
            fcntl.flock(looker, fcntl.LOCK_UN)

    cache = ExtentCache(tmp_path, label="made", clock=Waiting())
    part = ByteRange(0, EXTENT_BYTES)
    cache.read(identity(), [part], lambda _: [extent("video", "1", 0)])
    looker.close()
    assert CacheFolder(tmp_path, SystemClock()).is_used(scope_of("made"))


def test_a_limit_of_file_sizes_turns_writing_off(tmp_path: Path) -> None:
    counts = end(start("read_all", tmp_path, BUDGET, 10 * EXTENT_BYTES))
    assert counts["off"] == {"disk-full": 1}
    assert counts["sums"]["cache.admitted"] == counts["sums"]["cache.hits"] == 9
    assert counts["refused"]["off"] == 2 * (OBJECT_EXTENTS - 9)


def in_own_mount(script: str) -> list[str]:
    """A prefix that runs a command where ``script`` has mounted something; or skip the test."""
    prefix = ["unshare", "--mount", "sh", "-c", f'{script} && exec "$@"', "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no right to mount")
    return prefix


def test_a_full_disk_turns_writing_off(tmp_path: Path) -> None:
    before = in_own_mount(f"mount -t tmpfs -o size=1m none {tmp_path}")
    counts = end(start("read_all", tmp_path, BUDGET, before=before))
    assert counts["off"] == {"disk-full": 1}
    assert 20 <= counts["sums"]["cache.admitted"] == counts["sums"]["cache.hits"] <= 26


@pytest.mark.parametrize("filled", [True, False])
def test_a_read_only_disk_is_only_read(tmp_path: Path, filled: bool) -> None:
    if filled:
        Reader(tmp_path, BUDGET).read(*range(10))
    before = in_own_mount(
        f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path}"
    )
    counts = end(start("read_all", tmp_path, BUDGET, before=before))
    assert counts["off"] == {"read-only": 1}
    assert counts["sums"].get("cache.hits", 0) == (20 if filled else 0)
    assert counts["sums"]["bytes.cache_refused"] > 0


def test_without_the_right_to_write_it_is_only_read(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can become nobody")
    directory = tmp_path / "c"
    Reader(directory, BUDGET).read(*range(10))
    for path in [directory, *directory.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for parent in directory.parents:
        if parent.stat().st_uid == 0 and parent not in (Path("/"), Path("/tmp")):
            parent.chmod(0o755)
    counts = end(start("read_all_as_nobody", directory, BUDGET))
    assert counts["off"] == {"denied": 1}
    assert counts["sums"]["cache.hits"] == 20


def test_without_the_right_to_look_there_is_no_cache(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can become nobody")
    for parent in tmp_path.parents:
        if parent.stat().st_uid == 0 and parent not in (Path("/"), Path("/tmp")):
            parent.chmod(0o755)
    Reader(tmp_path / "c", BUDGET).read(*range(10))
    tmp_path.chmod(0o700)
    counts = end(start("read_all_as_nobody", tmp_path / "c", BUDGET))
    assert counts["off"] == {"denied": 1}
    assert "cache.hits" not in counts["sums"]


def test_a_stopped_process_with_the_lock_holds_nobody_up(tmp_path: Path) -> None:
    Reader(tmp_path, BUDGET).read(0)
    holder = start("hold_lock", tmp_path)
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.send_signal(signal.SIGSTOP)
    try:
        counts = end(start("many_reads", tmp_path, BUDGET, 1, 5))
        assert counts["refused"]["busy"] > 0
    finally:
        holder.kill()
        holder.communicate()
    assert end(start("many_reads", tmp_path, BUDGET, 1, 5))["sums"]["cache.admitted"] > 0


def test_caches_that_are_dropped_leave_no_file_open(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    for _ in range(3):
        reader = Reader(tmp_path, BUDGET)
        reader.read(*range(5))
        del reader
    assert open_files() == before
