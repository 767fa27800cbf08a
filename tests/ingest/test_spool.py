from __future__ import annotations

from pathlib import Path

from dstream.ingest.spool import Spool
from dstream.measure import Meter


def test_folders_of_killed_processes_are_swept_and_those_in_use_are_not(tmp_path: Path) -> None:
    left = tmp_path / "dstream-spool-left"
    left.mkdir()
    (left / "shard").write_bytes(b"x")
    (tmp_path / "dstream-spool-file").write_bytes(b"not a folder, but ours by name")
    (tmp_path / "other").mkdir()
    meter = Meter()
    with Spool(tmp_path, meter) as first:
        assert not left.exists()
        assert meter.snapshot().event("spool-swept")
        path, file = first.new_file()
        file.close()
        with Spool(tmp_path) as second:
            assert path.exists()
            assert first.path != second.path
    assert {entry.name for entry in tmp_path.iterdir()} <= {"other", "dstream-spool-file"}
