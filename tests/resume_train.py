"""A small training under torchrun, with its data position in its checkpoints.

``torchrun resume_train.py URL TOKEN OUT BATCH [--kill-at STEP] [--term-at STEP]``: trains on
``d``, saves ``train`` every two steps, and leaves ``rank<R>.jsonl`` with what it was given.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import dstream
import dstream.checkpoint
from loader_data import clip_lines

EPOCHS = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("token")
    parser.add_argument("out", type=Path)
    parser.add_argument("batch", type=int)
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--term-at", type=int, default=-1)
    given = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)  # DDP would import a compiler
    clips = dstream.open(given.token).clips("d", frames=4)
    state: dict[str, Any] = {"model": model.state_dict(), "step": 0}
    with dstream.open(given.url) as repo, clips.loader(given.batch, epochs=EPOCHS) as loader:
        if "train" in repo.names():
            repo.load(state, "train", loader=loader)
            model.load_state_dict(state["model"])
        loader.check_ranks()
        began = loader.position
        with (
            (given.out / f"rank{rank}.jsonl").open("a") as log,
            loader.stopping_on_signals(state_path=given.out / "state.json") as stop,
        ):
            for batch in loader:
                state["step"] += 1
                print(json.dumps(clip_lines(batch)), file=log, flush=True)
                loss = model(batch.video.float().mean(dim=(1, 3, 4)) / 255).square().mean()
                loss.backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        assert parameter.grad is not None
                        dist.all_reduce(parameter.grad)
                        parameter.sub_(0.01 * parameter.grad)
                        parameter.grad = None
                if state["step"] % 2 == 0:
                    repo.save(state, "train", step=state["step"], loader=loader)
                if rank == 1 and state["step"] == given.kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if rank == 1 and state["step"] == given.term_at:
                    os.kill(os.getpid(), signal.SIGTERM)
        if stop.stopped:
            state["step"] += 1  # a step of its own, so that it is not the one saved before
            repo.save(state, "train", step=state["step"], loader=loader)
        whole = loader.report(gather=True)
        facts = {
            "began": began,
            "position": loader.position,
            "stopped": stop.stopped,
            "received": stop.received is not None,
            "weight": model.weight.tolist(),
            "clips": [report.clips for report in whole.ranks],
            "summary": whole.summary,
        }
        (given.out / f"rank{rank}.json").write_text(json.dumps(facts))
    dist.destroy_process_group()
    # One that is left may let go of a tensor while the interpreter ends, which aborts it.
    until_s = time.monotonic() + 30  # one that was joined may still be listed
    while left := gloo_threads():
        assert time.monotonic() < until_s, left
        time.sleep(0.01)


def gloo_threads() -> list[str]:
    found = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.append(path.read_text().strip())
    return [name for name in found if "gloo" in name]


if __name__ == "__main__":
    main()
