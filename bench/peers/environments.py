"""The peers, and an environment for each, so that their pins do not meet.

All share torch, torchcodec and FFmpeg's bindings with the environment that runs the benchmark,
through a path file; what a peer brings of its own comes first. They hide nothing: one that cannot
be installed is named with pip's reason.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """A loader beside ours."""

    name: str
    module: str
    """In ``peers.adapters``."""
    requirements: tuple[str, ...] = ()
    """For pip; none: it runs in the benchmark's own environment."""
    bare: tuple[str, ...] = ()
    """Installed without what they ask for and whatever Python they ask for."""
    reads: str = "raw"
    """What it is given: ``raw`` videos, ``repo`` (ours), the ``pieces`` or whole ``videos`` that
    its own ``prepare`` writes, or ``local`` files: no peer then, but the limit of decoding."""
    preload: tuple[str, ...] = ()
    """What the server imports that its workers are forked from, where they may not be forked
    from the adapter itself."""
    note: str = ""

    @property
    def is_rival(self) -> bool:
        return self.reads not in ("repo", "local")


PEERS = (
    Peer("dstream", "dstream_loader", reads="repo", note="in place, 2 decoding threads"),
    Peer("torchcodec over s3fs", "torchcodec_fsspec", note="1 MiB read ahead"),
    Peer(
        "s3torchconnector + torchcodec",
        "s3torch_map",
        ("s3torchconnector==1.5.0",),
        note="range-based reader, 8 MB buffer",
    ),
    Peer("SPDL", "spdl_pipeline", ("spdl==0.8.0",), note="presigned URLs, 8 demuxing threads"),
    Peer(
        "lerobot-lancedb",
        "lerobot_lance",
        (
            "numpy<2.3", "av>=15,<16", "lancedb>=0.37.1", "pyarrow>=17", "huggingface_hub>=1.6,<2",
            "datasets", "draccus", "einops", "gymnasium", "opencv-python-headless<4.14",
            "packaging<26", "Pillow<13", "requests", "safetensors", "termcolor", "torchvision",
            "tqdm",
        ),
        ("lerobot==0.6.1", "lerobot-lancedb==0.3.1"),
        reads="videos",
        preload=("torch", "torchcodec.decoders", "lerobot_lancedb"),
        note="batches of 4; keeps what it fetched in memory",
    ),
    Peer(
        "Mosaic Streaming", "mosaic_mds", ("mosaicml-streaming==0.13.0",), reads="pieces",
        note="MDS of eight-second pieces, a clip of each",
    ),
    Peer(
        "WebDataset", "webdataset_tar", ("webdataset==1.0.2",), reads="pieces",
        note="tars of eight-second pieces, a clip of each",
    ),
    Peer(
        "litdata raw + torchcodec", "litdata_raw", ("litdata==0.2.76", "obstore", "zstd"),
        preload=("torch", "torchcodec.decoders", "litdata"), note="whole objects",
    ),
    Peer("local files: dstream", "dstream_loader", reads="local", note="no network"),
    Peer("local files: torchcodec", "torchcodec_local", reads="local",
         note="kept open, 2 threads, no network"),
)  # fmt: skip


class NotInstalledError(Exception):
    """Why a peer is not there, in one line."""


def versions() -> dict[str, str]:
    """What was compared: of this environment, and as asked for in the peers' own."""
    own = {name: metadata.version(name) for name in ("dstream", "torch", "torchcodec", "s3fs")}
    pinned = [part for peer in PEERS for part in (*peer.requirements, *peer.bare) if "==" in part]
    return own | dict(part.split("==") for part in pinned)


def python_of(peer: Peer, folder: Path) -> Path:
    """The peer's interpreter; its environment is made unless it is there.

    Raises:
        NotInstalledError: pip says no.
    """
    if not peer.requirements:
        return Path(sys.executable)
    place = folder / peer.module
    python, done = place / "bin/python", place / "installed"
    wanted = "\n".join((*peer.requirements, *peer.bare))
    if done.exists() and done.read_text() == wanted:
        return python
    print(f"installing {peer.name} into {place}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
    (packages,) = place.glob("lib/python3*/site-packages")
    (packages / "benchmark.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _pip(python, *peer.requirements)
    if peer.bare:
        _pip(python, "--no-deps", "--ignore-requires-python", *peer.bare)
        for path in packages.glob("lerobot/**/*.py"):
            _spell_generics_for_3_11(path)
    done.write_text(wanted)
    return python


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        lines = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalledError((lines or ["ERROR: pip failed"])[-1][7:200])


_GENERIC = re.compile(r"^(class|def) (\w+)\[([^\]]+)\](\([^)]*\))?", re.M)
_ALIAS = re.compile(r"^type (\w+) = ", re.M)


def _spell_generics_for_3_11(path: Path) -> None:
    """lerobot 0.6 declares type variables in place, which Python reads from 3.12 on."""
    if sys.version_info >= (3, 12):
        return
    text, variables = path.read_text(), set()

    def spelt(found: re.Match[str]) -> str:
        kind, name, given, rest = found.groups()
        names = [part.split(":")[0].strip() for part in given.split(",")]
        variables.update(names)
        if kind == "def":
            return f"def {name}{rest or ''}"
        bases = [
            *(rest or "").strip("()").split(","),
            f"__import__('typing').Generic[{', '.join(names)}]",
        ]
        return f"class {name}({', '.join(base for base in bases if base)})"

    changed = _ALIAS.sub(r"\1 = ", _GENERIC.sub(spelt, text))
    if changed != text:
        made = "".join(f"{name} = __import__('typing').TypeVar({name!r})\n" for name in variables)
        first = re.search(r"^(?:from|import) (?!__future__)", changed, re.M)
        at = first.start() if first else 0
        path.write_text(changed[:at] + made + changed[at:])
