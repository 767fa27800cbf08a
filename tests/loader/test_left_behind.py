"""After a loader is closed, or its process interrupted, nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loader_data import videos

SCRIPT = """
import os, sys, threading
import dstream

def main(source, how):
    array = "numpy" if how in ("closed", "threads") else "torch"
    clips = dstream.clips(source, frames=4, clips_per_file=50, array=array)
    if how == "closed":
        for _ in range(2):
            with clips.loader(2, epochs=None) as loader:
                for number, batch in zip(range(3), loader):
                    pass
        names = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
        print("left", names, flush=True)
        sys.stdin.readline()
        return
    if how == "threads":
        batches = iter(clips.loader(2, epochs=None))
    else:
        from torch.utils.data import DataLoader
        dataset = clips.iterable(2, epochs=None, workers=1, fetchers=2)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=how)
        batches = iter(loader)
    next(batches)
    workers = getattr(batches, "_workers", [])
    print("going", *(worker.pid for worker in workers), flush=True)
    for batch in batches:
        pass

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
"""


def started(tmp_path: Path, how: str) -> subprocess.Popen[str]:
    videos(tmp_path / "source", 1, frames=48, size=(64, 64))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "ignore",
            str(tmp_path / "script.py"),
            str(tmp_path / "source"),
            how,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        text=True,
        start_new_session=True,
    )


def shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def lives(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_closed_loaders_leave_no_thread_and_no_process(tmp_path: Path) -> None:
    with started(tmp_path, "closed") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "left []\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        assert children.read_text() == ""
        _, err = process.communicate("\n", timeout=120)
    assert (process.returncode, err) == (0, "")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("how", ["threads", "fork", "spawn"])
def test_an_interrupted_process_leaves_nothing(tmp_path: Path, how: str) -> None:
    if how != "threads":
        pytest.importorskip("torch", exc_type=ImportError)
    with started(tmp_path, how) as process:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert line[:1] == ["going"]
        workers = [int(pid) for pid in line[1:]]
        assert all(lives(pid) for pid in workers)
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: the whole group
        process.communicate(timeout=120)
    assert process.returncode in (-signal.SIGINT, 1)
    deadline_s = time.monotonic() + 30
    while any(lives(pid) for pid in workers) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(lives(pid) for pid in workers)
    # An interrupted parent ends workers that still finish a clip, and multiprocessing's own folder
    # of sockets then stays.
    files = [path for path in (tmp_path / "tmp").iterdir() if not path.name.startswith("pymp-")]
    assert files == []
    mine = {str(process.pid), *map(str, workers)}
    assert not [name for name in shared_memory() if mine & set(name.split("_"))]
