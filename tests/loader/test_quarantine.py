"""Files that fail in a run are written down, and the next ingest leaves them."""

import json
import multiprocessing
from pathlib import Path

import pytest

import dstream
from cli_runner import dstream as run_dstream
from dstream.format.quarantine import MAX_DETAIL, QuarantineLine, encode_line, parse_lines
from dstream.loader.failures import FailureLog
from dstream.measure import Meter
from loader_data import videos


def spoiled(data: bytes) -> bytes:
    """A video whose tables and first frames are whole, and the rest is not."""
    result = bytearray(data)
    start = result.index(b"mdat") + 4
    middle = start + (len(result) - start) // 3
    result[middle:] = bytes(len(result) - middle)
    return bytes(result)


def test_from_a_run_to_the_next_ingest(tmp_path: Path) -> None:
    source, repository, quarantine = tmp_path / "raw", tmp_path / "repo", tmp_path / "bad.jsonl"
    source.mkdir()
    for name, data in videos(tmp_path, 3, frames=48).items():
        (source / name).write_bytes(spoiled(data) if name == "v01.mp4" else data)
    assert run_dstream("init", repository).code == 0
    common = "--name", "d", "--repo", repository, "--quiet"
    assert run_dstream("ingest", source, *common).code == 0
    clips = dstream.open(repository).clips("d", frames=4, array="numpy")
    with clips.loader(4, on_error="skip", quarantine=quarantine) as loader:
        list(loader)
        reasons = set(loader.report().skips)
    rows = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert [row["name"] for row in rows] == ["v01.mp4"]
    assert {row["reason"] for row in rows} <= reasons
    assert "v01" in rows[0]["detail"]
    again = run_dstream("ingest", source, *common, "--replace", "--quarantine", quarantine)
    assert again.code == 0, again.err
    clips = dstream.open(repository).clips("d", frames=4, array="numpy")
    with clips.loader(4) as loader:
        assert {key for batch in loader for key in batch.keys} == {"v00.mp4", "v02.mp4"}
        assert not loader.report().skips


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("not a line\n")
    common = "ingest", tmp_path, "--name", "d", "--repo", tmp_path / "repo", "--quarantine"
    assert run_dstream("init", tmp_path / "repo").code == 0
    assert run_dstream(*common, tmp_path / "bad").code == 2
    assert run_dstream(*common, tmp_path / "absent").code == 2


def _write(rank: int, path: Path) -> None:
    log = FailureLog("skip", 1000, Meter(), path)
    for number in range(200):
        name = f"{rank}/{number}.mp4"
        log.record(dstream.CorruptDataError("x" * 2000), name, 0, name, for_good=False, name=name)


def test_many_ranks_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_write, args=(rank, path)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    found = parse_lines(path.read_bytes(), "bad.jsonl")
    assert {line.name for line in found} == {f"{r}/{n}.mp4" for r in range(3) for n in range(200)}
    assert {len(line.detail) for line in found} == {MAX_DETAIL}


def test_lines() -> None:
    one, two = QuarantineLine("a\nb.mp4", "damaged", "…"), QuarantineLine("c.mp4", "no-frames")
    data = encode_line(one) + encode_line(two) + encode_line(QuarantineLine("c.mp4", "later"))
    assert parse_lines(data, "f") == (one, two)
    assert parse_lines(data + b'{"name": "d', "f") == (one, two)
    for wrong in (b"1\n", b"{}\n", b'{"name": 1, "reason": "x"}\n', b"\n", b"\xff\n"):
        with pytest.raises(dstream.InvalidInputError, match="line 1"):
            parse_lines(wrong, "f")
