"""A training under torchrun that is killed, pre-empted and resumed on other numbers of ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dstream
from dstream.store.opening import open_store
from loader_data import clip_lines, fill, new_url, publish, videos

pytest.importorskip("torch", exc_type=ImportError)
SCRIPT = Path(__file__).parents[1] / "resume_train.py"


def torchrun(ranks: int, *arguments: object) -> int:
    """Exit code of the training on so many ranks."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path])}
    ran = subprocess.run(
        [*words, str(ranks), str(SCRIPT), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if ran.returncode:
        print(ran.stdout[-2000:], ran.stderr[-4000:])
    return ran.returncode


def delivered(out: Path) -> dict[int, str]:
    """All clips that the ranks of a run were given, by position; each once."""
    found: dict[int, str] = {}
    for path in sorted(out.glob("rank*.jsonl")):
        for line in path.read_text().splitlines():
            for position, digest in json.loads(line).items():
                assert int(position) not in found
                found[int(position)] = digest
    return found


def told(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]


def test_killed_and_preempted_and_resumed_it_sees_every_clip_once(tmp_path: Path) -> None:
    source, url = new_url(), str(tmp_path / "repo")
    made = videos(tmp_path / "made", 2, frames=48, size=(64, 64))
    fill(open_store(source), made)
    publish(url, source, packed=True)
    with dstream.open(url) as repo:
        token = repo.pin(["d"], pin_id="run", ttl_s=3600).token
        with repo.clips("d", frames=4).loader(8, epochs=4) as loader:
            expected: dict[int, str] = {}
            for batch in loader:
                expected |= clip_lines(batch)
    outs = [tmp_path / name for name in ("killed", "preempted", "finished")]
    for out in outs:
        out.mkdir()

    assert torchrun(3, url, token, outs[0], 2, "--kill-at", 5) != 0
    with dstream.open(url) as repo:  # meanwhile the data go on
        fill(open_store(more := new_url()), {"v09.mp4": made["v00.mp4"]})
        publish(url, more, packed=True)
    assert torchrun(2, url, token, outs[1], 2, "--term-at", 8) == 0
    preempted = told(outs[1])
    assert {facts["began"] for facts in preempted} == {24}  # step 4 of 3 x 2
    assert {facts["position"] for facts in preempted} == {24 + 4 * 4}
    assert [facts["stopped"] for facts in preempted] == [True, True]
    assert [facts["received"] for facts in preempted] == [False, True]
    written = json.loads((outs[1] / "state.json").read_text())
    assert (written["position"], written["pin"]) == (40, token)

    assert torchrun(4, url, token, outs[2], 1) == 0
    finished = told(outs[2])
    assert {facts["began"] for facts in finished} == {40}
    assert {facts["position"] for facts in finished} == {72}
    assert not any(facts["stopped"] for facts in finished)
    assert {tuple(facts["clips"]) for facts in finished} == {(8, 8, 8, 8)}
    assert {facts["summary"] for facts in finished} == {finished[0]["summary"]}
    assert len({str(facts["weight"]) for facts in finished}) == 1

    first, second, third = (delivered(out) for out in outs)
    kept = {position: digest for position, digest in first.items() if position < 24}
    assert list(sorted(kept)) == list(range(24))
    assert sorted(second) == list(range(24, 40))
    assert sorted(third) == list(range(40, 72))
    assert {**kept, **second, **third} == {p: expected[p] for p in range(72)}
    # What the killed run did after its last checkpoint was the same as well.
    assert all(expected[position] == digest for position, digest in first.items())
