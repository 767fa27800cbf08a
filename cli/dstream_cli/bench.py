"""``dstream bench``: run the loader and say what it cost and what holds it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dstream.errors import InvalidInputError
from dstream_cli.bench_compare import bench_compare
from dstream_cli.bench_loader import bench_loader
from dstream_cli.bench_outputs import Outputs
from dstream_cli.bench_tables import bench_parts
from dstream_cli.clip_source import Sampling, open_clips, parse_crop, parse_size
from dstream_cli.options import (
    EXIT_INTERRUPTED,
    Cache,
    CacheBytes,
    Common,
    Debug,
    EgressPrice,
    GetPrice,
    Json,
    PutPrice,
    Quiet,
    Repo,
    S3Args,
    common,
    epilog,
    is_path,
)
from dstream_cli.progress import ProgressLine

if TYPE_CHECKING:
    from dstream.diagnose.bench.document import BenchDocument
    from dstream.diagnose.bench.recording import Recording
    from dstream.errors import DstreamError
    from dstream.loader import Clips

NAME = "bench"
SUMMARY = "Say what sets the pace of a loader, and what to change."
EPILOG = epilog(
    "dstream bench gameplay --frames 16 --fps 8 --seconds 30",
    "dstream bench gameplay --frames 16 --step-ms 120 --batch-size 32 --details",
    "dstream bench gameplay --frames 16 --html report.html --trace trace.json",
    "dstream bench gameplay@v3 --clips 500 --batch-size 16 --resize 256 --json",
    "dstream bench gameplay --split train --where 'width >= 1280 and fps > 20'",
    "dstream bench s3://raw/videos --frames 16 --stride 2 --clips 100",
    "dstream bench --loader train:make_loader --loader-arg workers=4 --step-ms 50",
    "dstream bench --compare before.json after.json",
    codes=(0, 1, 2, 3, 10, 12, 130),
)
_DEFAULT_SECONDS = 20.0
_DEFAULT_BATCH = 8
_MOST_THREADS = 1024
"""Of a kind: more only take memory, and minutes to start."""

OnError = Literal["raise", "skip"]
DecoderName = Literal["cpu", "nvdec", "auto"]

_ANY_NUMBER = 1 << 62
"""Of failing files: a bench of what lies there is to tell how many fail, not to stop at some."""


def run(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="NAME[@REF] | SOURCE",
            help="A dataset's generation, or a folder or bucket of raw videos.",
            show_default=False,
        ),
    ] = "",
    loader: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FACTORY", help="Measure what this function gives: batches of any make."
        ),
    ] = "",
    loader_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V", help="An argument of FACTORY, as Python writes it. Repeatable."
        ),
    ] = None,
    warmup: Annotated[
        int, typer.Option(metavar="N", min=1, help="Batches of --loader before it is counted.")
    ] = 5,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A.json B.json",
            help="Compare what --json printed; each is a file, or several with commas.",
            show_default=False,
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option(metavar="N", min=1, help="Measure so often, each time anew.")
    ] = 1,
    step_ms: Annotated[
        float,
        typer.Option(
            metavar="MS", min=0, max=3_600_000, help="Wait so long with each batch, as a step."
        ),
    ] = 0,
    clips: Annotated[
        int,
        typer.Option(metavar="N", min=0, show_default=False, help="Stop after this many clips."),
    ] = 0,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, show_default=False, help="Stop after this long; 20 without --clips."
        ),
    ] = 0,
    frames: Annotated[int, typer.Option(metavar="N", min=1, help="Frames a clip.")] = 16,
    stride: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Take every N-th frame; 1 without --fps."),
    ] = None,
    fps: Annotated[
        float | None, typer.Option(metavar="RATE", help="Take frames by time instead.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default=False,
            help="Clips a batch; 8. With --loader: what a batch holds, where it does not tell.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=_MOST_THREADS, help="Decoding threads; one for each CPU."
        ),
    ] = None,
    fetchers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=_MOST_THREADS,
            help="Clips fetched at once; found by trying without.",
            show_default=False,
        ),
    ] = None,
    prefetch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Batches decoded ahead; by default as many as keep the threads busy.",
            show_default=False,
        ),
    ] = None,
    decoder: Annotated[
        DecoderName,
        typer.Option(help="auto: the GPU's decoders for what they take, the rest on the CPU."),
    ] = "cpu",
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Copy batches to this device, such as cuda.")
    ] = "",
    resize: Annotated[
        str, typer.Option(metavar="SIZE", help="Shorter side as 256, or HEIGHTxWIDTH.")
    ] = "",
    crop: Annotated[
        str, typer.Option(metavar="HEIGHTxWIDTH", help="Cut this out of the middle afterwards.")
    ] = "",
    sampling: Annotated[Sampling, typer.Option(help="Where clips start.")] = "uniform",
    shuffle: Annotated[bool, typer.Option(help="In a random order, or as listed.")] = True,
    clips_per_gop: Annotated[
        int, typer.Option(metavar="N", min=1, help="Consecutive clips made from one decode.")
    ] = 1,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of order and starts.")] = 0,
    split: Annotated[
        str | None, typer.Option(metavar="SPLIT", help="Only samples of this split.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Only samples for which this is true: 'width >= 1280'."),
    ] = None,
    recipe: Annotated[
        str, typer.Option(metavar="FILE", help="The recipe's file, if it is not installed.")
    ] = "",
    cache: Cache = "",
    cache_bytes: CacheBytes = "",
    on_error: Annotated[
        OnError | None,
        typer.Option(
            help="Stop at a file that gives no clip (datasets), or count it (raw videos).",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        str, typer.Option(metavar="FILE", help="Write the report as one page for a browser.")
    ] = "",
    trace: Annotated[
        str,
        typer.Option(metavar="FILE", help="Write when each stage of each clip ran, for Perfetto."),
    ] = "",
    get_price: GetPrice = 0.0004,
    put_price: PutPrice = 0.005,
    egress_price: EgressPrice = 0.0,
    details: Annotated[
        bool, typer.Option("--details", help="All counters of the run as well.")
    ] = False,
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> int:
    """Stream clips as training would, then each stage alone, and say what sets the pace.

    The verdict names the bottleneck, what shows it, the setting to change and the gain to expect.
    Clips repeat when the data is smaller than what is asked for. --loader measures a loader of
    any make instead: batches from any Python function, with --clips for samples. Ctrl-C ends the
    run and prints what was measured until then; a second one ends the command at once.
    """
    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    if sum((bool(target), bool(loader), compare is not None)) != 1:
        raise InvalidInputError("give NAME[@REF], SOURCE, --loader or --compare, and one of them")
    _refuse_unused(context, "NAME or SOURCE" if target else "--loader" if loader else "--compare")
    if compare is not None:
        return bench_compare(call, *compare)
    if not seconds and not clips:
        seconds = _DEFAULT_SECONDS
    if loader:
        return bench_loader(
            call,
            loader,
            loader_arg or (),
            repeat,
            warmup=warmup,
            seconds=seconds or None,
            samples=clips or None,
            step_s=step_ms / 1000,
            batch_size=batch_size,
        )
    if stride is not None and fps is not None:
        raise InvalidInputError("give --stride or --fps, not both")
    if on_error is None:
        on_error = "skip" if is_path(target, call.repo) else "raise"
    clip: dict[str, Any] = {
        "frames": frames,
        "stride": None if fps is not None else stride or 1,
        "fps": fps,
        "sampling": sampling,
        "seed": seed,
        "resize": parse_size(resize),
        "crop": parse_crop(crop),
        "split": split,
        "where": where,
        "recipe": recipe,
    }
    loading: dict[str, Any] = {
        "workers": workers,
        "fetchers": fetchers or "auto",
        "prefetch": prefetch,
        "shuffle": shuffle,
        "clips_per_gop": clips_per_gop,
        "on_error": on_error,
        "decoder": decoder,
        "device": device or None,
    }
    node = {"cache": cache or None, "cache_bytes": cache_bytes or None}
    size = batch_size or _DEFAULT_BATCH
    outputs = Outputs(html, trace)
    outputs.check()
    document, recording, error = _measure(
        call,
        lambda: open_clips(call, target, node, **clip),
        target,
        size,
        loading,
        clips=clips,
        seconds=seconds,
        step_s=step_ms / 1000,
        repeat=repeat,
        max_spans=outputs.max_spans,
        prices=(get_price, put_price, egress_price),
        settings={**clip, **loading, **node, "batch_size": size, "step_ms": step_ms},
    )
    call.out.result(document.as_json(), bench_parts(document, details=details))
    outputs.write(call.out, document, recording)
    if error is not None:
        raise error
    if "interrupted" in document.settings:
        return EXIT_INTERRUPTED
    return 3 if document.skipped else 0


_OF_ALL = {"json", "quiet", "debug"}
_OF_LOADER = {
    "loader", "loader_arg", "warmup", "repeat", "step_ms", "clips", "seconds", "batch_size",
}  # fmt: skip


def _refuse_unused(context: typer.Context, what: str) -> None:
    """Refuse options that mean nothing here: a run without them would tell of another."""
    given = {
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
    }
    if what == "--loader":
        unused = given - _OF_ALL - _OF_LOADER
    elif what == "--compare":
        unused = given - _OF_ALL - {"compare"}
    else:
        unused = given & {"loader_arg", "warmup"}
    if unused:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(unused))
        raise InvalidInputError(f"{what} does not take {names}", options=sorted(unused))


def _measure(
    call: Common,
    opened: Callable[[], Clips],
    target: str,
    batch_size: int,
    loading: dict[str, Any],
    *,
    clips: int,
    seconds: float,
    step_s: float,
    repeat: int,
    max_spans: int,
    prices: tuple[float, float, float],
    settings: dict[str, Any],
) -> tuple[BenchDocument, Recording, DstreamError | None]:
    """Run the bench with a line of progress."""
    from dstream.clock import SystemClock
    from dstream.diagnose.bench.bench import bench
    from dstream.diagnose.bench.interruption import Interruption
    from dstream.diagnose.bench.run import Wish
    from dstream.diagnose.prices import Prices

    # One process measures itself, whatever launched it.
    options = {**loading, "rank": 0, "world_size": 1, "epochs": None, "max_failures": _ANY_NUMBER}
    wish, clock = Wish(clips, seconds, step_s, repeat, max_spans), SystemClock()
    interruption = Interruption()
    with ProgressLine(call.out, clock, "bench") as line:

        def told(taken: int) -> None:
            line.update(
                done=taken, total=clips or None, done_bytes=0, total_bytes=None, what="clips"
            )

        with interruption.on_signal():
            return bench(
                opened,
                target,
                batch_size,
                options,
                wish,
                settings,
                Prices(*prices),
                clock,
                told,
                interruption,
            )
