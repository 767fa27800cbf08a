"""PyNvVideoCodec installed where there is no driver: nothing changes, and it is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dstream.media.decoders.nvdec import package_absence
from made_video import make_video

pytestmark = pytest.mark.skipif(
    package_absence() != "no_driver",
    reason=f"for machines with PyNvVideoCodec and without a driver, here: {package_absence()}",
)

STREAM = """
import json, sys
import dstream
clips = dstream.clips(sys.argv[1], frames=4, array="numpy")
with clips.loader(2, decoder="auto", workers=1) as loader:
    frames = sum(batch.video.any(axis=(2, 3, 4)).sum() for batch in loader)
imported = sorted({"PyNvVideoCodec", "kvikio"} & sys.modules.keys())
print(json.dumps([int(frames), loader.report().fallbacks, imported]))
try:
    clips.loader(2, decoder="nvdec")
except dstream.InvalidInputError as error:
    print(json.dumps(str(error)))
"""


def ran(*command: str) -> str:
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "NVENC" not in done.stderr
    return done.stdout


def test_help_and_import_leave_the_package_alone() -> None:
    assert "dstream" in ran("-m", "dstream_cli", "--help")
    loaded = ran("-c", "import dstream, sys; print('PyNvVideoCodec' in sys.modules)")
    assert loaded.strip() == "False"


def test_the_doctor_says_what_is_missing() -> None:
    findings = json.loads(ran("-m", "dstream_cli", "doctor", "--json"))["findings"]
    (found,) = [finding for finding in findings if finding["check"] == "NVDEC"]
    assert found["verdict"] == "absent"
    assert found["found"].startswith("no_driver")
    assert "video" in found["remedy"]


def test_clips_are_streamed_on_the_cpu_and_counted(tmp_path: Path) -> None:
    make_video(tmp_path / "a.mp4", frames=20, gop=10)
    make_video(tmp_path / "b.mp4", frames=20, gop=10)
    told = [json.loads(line) for line in ran("-c", STREAM, str(tmp_path)).splitlines()]
    assert told[0] == [8, {"no_driver": 2}, []]
    assert "no_driver" in told[1]
    assert "decoder='auto'" in told[1]
