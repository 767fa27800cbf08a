"""Random 16-frame clips of 720p video from one S3 endpoint: dstream and its peers, in turns.

    cd bench && python -m peers FOLDER --endpoint http://127.0.0.1:9002 --delays 0,20,80

Videos and environments are made in FOLDER once. Each turn is a fresh process that streams without
an end. Counting begins once more clips have come than its loader can have had in stock at the
first, and lasts for ``--window-s``. dstream's measuring proxy delays all of them alike and counts
their requests and bytes. Credentials come as boto3 finds them. ``--write`` puts the tables of one
or more JSON files, and their plot, into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from dstream.diagnose.proxy import MeasuringProxy, user_upstream
from dstream.diagnose.shaping import Shape
from peers import dataset, environments, report
from peers.environments import PEERS, NotInstalledError, Peer
from peers.frame_sums import FrameSums, frame_sums
from peers.rows import best_rate, row
from peers.turns import Turn, TurnFailedError, take, task_for

FRAMES, CORES = 16, 2
WORKERS = 2 * CORES
SIZES = {"full": None, "256": (256, 456)}
LIMIT_WINDOWS = 2.5
"""A turn that has not its least clips by then ends with what it has."""


def installed(names: list[str], folder: Path) -> tuple[dict[Peer, Path], dict[str, str]]:
    """The interpreters of the peers that can be installed, and why the others cannot."""
    pythons, missing = {}, {}
    for peer in PEERS:
        if names and peer.module not in names:
            continue
        try:
            pythons[peer] = environments.python_of(peer, folder)
        except NotInstalledError as error:
            missing[peer.name] = f"cannot be installed: {error}"
    return pythons, missing


def prepared(
    pythons: dict[Peer, Path], made: dataset.DataSet, missing: dict[str, str]
) -> dict[Peer, Path]:
    """Those whose data could be written in their format."""
    able = {}
    for peer, python in pythons.items():
        with tempfile.TemporaryDirectory(dir=Path(made.original).parent) as scratch:
            try:
                dataset.prepare_for(peer, python, made, Path(scratch))
                able[peer] = python
            except dataset.NotPreparedError as error:
                missing[peer.name] = f"its data cannot be written: {error}"
    return able


def take_turns(
    pythons: dict[Peer, Path],
    made: dataset.DataSet,
    sums: FrameSums,
    rtt_ms: float,
    size: str,
    arguments: argparse.Namespace,
) -> tuple[dict[Peer, list[Turn]], dict[Peer, list[str]]]:
    """All rounds at one delay, and why turns failed. After two a peer is not asked again.

    Local files are read in the first round only.
    """
    turns: dict[Peer, list[Turn]] = {peer: [] for peer in pythons}
    failed: dict[Peer, list[str]] = {peer: [] for peer in pythons}
    upstream = user_upstream(arguments.endpoint)
    with MeasuringProxy(upstream, Shape(delay_s=rtt_ms / 1000)).serving() as proxy:
        for number in range(arguments.rounds):
            for peer, python in pythons.items():
                if len(failed[peer]) == 2 or (peer.reads == "local" and number):
                    continue
                with tempfile.TemporaryDirectory() as scratch:
                    task = task_for(
                        peer,
                        made,
                        proxy.endpoint_url,
                        SIZES[size],
                        scratch,
                        frames=FRAMES,
                        cores=CORES,
                        workers=WORKERS,
                        seed=1000 + number,
                        window_s=arguments.window_s,
                        least_clips=arguments.least_clips,
                        settle_limit_s=arguments.settle_limit_s,
                        limit_s=LIMIT_WINDOWS * arguments.window_s,
                    )
                    try:
                        turn = take(peer, python, task, made, sums, proxy)
                    except TurnFailedError as error:
                        failed[peer].append(str(error))
                        print(f"  {peer.name}: {error}", file=sys.stderr)
                        continue
                turns[peer].append(turn)
                place = f"{rtt_ms:g} ms, {size}, round {number}"
                print(
                    f"  {place}: {peer.name}: {turn.rate:.2f} clips/s, {turn.clips} clips after"
                    f" {turn.passed_clips}, {turn.clips / turn.cpu_s:.2f} a CPU second,"
                    f" exact: {turn.exact}",
                    file=sys.stderr,
                )
    return turns, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="for videos and environments")
    parser.add_argument("--endpoint", help="of an S3 server")
    parser.add_argument("--gop", type=int, default=250, help="keyframe distance in frames")
    parser.add_argument("--seconds", type=int, default=200, help="length of a video")
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--delays", default="0,20,80", help="round trips in ms")
    parser.add_argument("--sizes", default="full,256", help="full, 256, or both")
    parser.add_argument("--only", default="", help="adapters by their modules' names")
    parser.add_argument("--window-s", type=float, default=5.0, help="of counting in a turn")
    parser.add_argument("--least-clips", type=int, default=12, help="counted, in a longer window")
    parser.add_argument(
        "--settle-limit-s",
        type=float,
        default=20.0,
        help="counting begins so long after the first clip whatever is left of the stock",
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, nargs="+", help="only write the docs from these")
    arguments = parser.parse_args()
    if arguments.write:
        report.write([json.loads(path.read_text()) for path in arguments.write])
        return
    if not arguments.endpoint:
        parser.error("--endpoint is needed")
    os.environ["AWS_ENDPOINT_URL"] = arguments.endpoint
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    names = arguments.only.split(",") if arguments.only else []
    pythons, missing = installed(names, folder / "environments")
    made = dataset.make(folder, arguments.gop, arguments.seconds, arguments.copies)
    able = prepared(pythons, made, missing)
    sums = frame_sums(Path(made.original))
    runs = []
    for size in arguments.sizes.split(","):
        for rtt_ms in (float(text) for text in arguments.delays.split(",")):
            turns, failed = take_turns(able, made, sums, rtt_ms, size, arguments)
            best = best_rate(turns)
            rows = [
                row(peer, done, failed[peer], best, made.gop, FRAMES)
                for peer, done in turns.items()
                if done
            ]
            never = {peer.name: failed[peer][-1] for peer, done in turns.items() if not done}
            run = {"gop": made.gop, "rtt_ms": rtt_ms, "size": size, "rows": rows}
            runs.append(run | {"missing": missing | never})
            print(report.table(runs[-1]))
            if arguments.json:  # each time: a run may be ended before its last table
                settings = {"command": " ".join(sys.argv[1:]), "versions": environments.versions()}
                arguments.json.write_text(json.dumps({**settings, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
