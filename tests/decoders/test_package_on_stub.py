"""The real PyNvVideoCodec over a stub of the driver: what dstream calls, and what arrives there.

It decodes nothing. It shows that the package takes the calls as they are written, that packets,
numbers and the end of a stream reach NVIDIA's parser, and that one parser serves run after run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dstream.media.decoders.nvdec import package_absence

COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(
    package_absence() != "no_driver" or COMPILER is None,
    reason=f"needs PyNvVideoCodec, a C compiler, and no driver; here: {package_absence()}",
)

CALLS = """
import json
from dstream.media.decoders.nvdec import NvdecDevice
from dstream.media.decoders.pool import SessionKey
from dstream.measure import Meter

device = NvdecDevice(0)
found = device.capabilities("h264")
limits = {f"{codec} {depth}": str(limits) for (codec, depth), limits in found.formats.items()}
print(json.dumps([device.engines, limits]))
for on_device in (False, True):
    key = SessionKey("h264", 8, 64, 64, 1, on_device)
    for _ in range(2):
        with device.pool().session(key, Meter()) as session:
            assert list(session.decode([b"\\x11 first", b"\\x22 second"])) == []
device.close()
"""
TIMESTAMP, END = 2, 1


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    source = Path(__file__).with_name("driver_stub.c")
    made = tmp_path / "libcuda.so.1"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", made, source], check=True)
    for name in ("libnvcuvid.so.1", "libnvidia-encode.so.1"):
        (tmp_path / name).symlink_to(made)
    return tmp_path


def test_calls_arrive_as_they_should(driver: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALLS],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(driver)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (engines, limits), *packets = map(json.loads, done.stdout.splitlines())
    assert engines == 7
    assert limits == {
        "h264 8": "Limits(min_width=48, max_width=4096, min_height=16, max_height=4096, "
        "max_macroblocks=65536)"
    }
    end = [TIMESTAMP | END, 0, 0, -1]
    runs = [[[TIMESTAMP, 7, first, 0x11], [TIMESTAMP, 8, first + 1, 0x22], end] for first in (1, 3)]
    assert packets == [*runs[0], *runs[1]] * 2
