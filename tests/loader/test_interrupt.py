"""Ctrl-C in the middle of everything: the process ends soon, with 130, and leaves nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loader_data import videos
from s3_stub import Reply, stub_server

SCRIPT = """
import sys, threading
import dstream
from dstream.store.options import StoreOptions

where, endpoint = sys.argv[1:3]
options = StoreOptions(endpoint_url=endpoint or None, region="us-east-1")
try:
    clips = dstream.clips(
        where, frames=4, clips_per_file=200, array="numpy", options=options
    ) if not endpoint else dstream.clips(where, frames=4, options=options)
    with clips.loader(2, epochs=None, prefetch=3) as loader:
        if endpoint:
            print("going", flush=True)
        for number, batch in enumerate(loader):
            if number == 5:
                print("going", flush=True)
                # Nothing is taken any more: every queue fills up.
                threading.Event().wait(60)
except KeyboardInterrupt:
    left = [t.name for t in threading.enumerate() if t.name.startswith("dstream-")]
    print("left", left, flush=True)
    sys.exit(130)
"""


def interrupted(*arguments: str, folder: Path, wait_s: float) -> tuple[int, str, str, float]:
    """Exit code, output and seconds until the end, of the script with a SIGINT after ``wait_s``."""
    folder.mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        time.sleep(wait_s)
        began_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err, time.monotonic() - began_s


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def test_with_every_queue_full(tmp_path: Path) -> None:
    source = tmp_path / "videos"
    source.mkdir()
    videos(source, 2, frames=48)
    before = shared_memory()
    code, out, err, _ = interrupted(str(source), "", folder=tmp_path / "tmp", wait_s=0.5)
    assert (code, out, err) == (130, "left []\n", "")
    assert os.listdir(tmp_path / "tmp") == []
    assert not {name for name in shared_memory() - before if "dstream" in name}


@pytest.mark.parametrize("trouble", ["stall", "throttle"])
def test_in_the_middle_of_a_fetch(tmp_path: Path, trouble: str) -> None:
    """Reads that wait for a server, or for the next attempt."""
    listing = (
        b"<ListBucketResult><IsTruncated>false</IsTruncated>"
        b"<Contents><Key>a.mp4</Key><Size>100000</Size><ETag>e</ETag>"
        b"<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>"
    )
    with stub_server() as stub:
        busy = Reply(503, b"", {"Retry-After": "50"})
        hanging = Reply(206, b"", stall_s=50.0)
        stub.answer = lambda request: (
            Reply(200, listing)
            if "list-type" in request.path
            else busy if trouble == "throttle" else hanging
        )  # fmt: skip
        code, out, err, _ = interrupted(
            "s3://bucket/videos", stub.endpoint_url, folder=tmp_path / "tmp", wait_s=1.0
        )
    assert code == 130, err
    assert out == "left []\n"
    assert "Traceback" not in err
