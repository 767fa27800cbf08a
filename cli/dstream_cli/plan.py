"""``dstream plan``: a run of many nodes on paper, and what it would read of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dstream.errors import InvalidInputError
from dstream_cli.clip_source import Sampling, open_clips
from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog
from dstream_cli.plain import counted
from dstream_cli.render import Facts, Part, Table

if TYPE_CHECKING:
    from dstream.loader.gop_layout import GopLayout
    from dstream.loader.plan import Order, Shuffle
    from dstream.loader.simulate import Cluster

NAME = "plan"
SUMMARY = "Tell on paper what many nodes would read of the store."
EPILOG = epilog(
    "dstream plan gameplay --nodes 64 --ranks-per-node 8 --cache 4TB",
    "dstream plan --videos 20000 --gop-frames 250 --nodes 64 --cache 20GB",
    "dstream plan gameplay --nodes 64 --cache 4TB --resume-nodes 32 --json",
    codes=(0, 1, 2, 10, 12),
)
Compared = Literal["affine", "global", "both"]


def run(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="[NAME[@REF] | SOURCE]",
            help="A dataset's generation, or raw videos; without it --videos says what to assume.",
        ),
    ] = "",
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Nodes of the job.")] = 1,
    ranks_per_node: Annotated[int, typer.Option(metavar="N", min=1, help="Ranks on each.")] = 8,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Clips a batch.")] = 8,
    cache: Annotated[
        str, typer.Option(metavar="SIZE", help="What each node's cache may take, such as 4TB.")
    ] = "0",
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="How many to follow.")] = 2,
    shuffle: Annotated[
        Compared, typer.Option(help="Which order, or both for comparison.")
    ] = "both",
    partitions: Annotated[
        int | None, typer.Option(metavar="N", help="Of the affine order; 512.", show_default=False)
    ] = None,
    window_clips: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Of its partitions: clips that change places.",
            show_default=False,
        ),
    ] = None,
    resume_nodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Go on with so many nodes.")
    ] = None,
    resume_at: Annotated[
        float | None,
        typer.Option(metavar="EPOCHS", min=0, help="After how many epochs; 0.5."),
    ] = None,
    frames: Annotated[int, typer.Option(metavar="N", min=1, help="Frames a clip.")] = 16,
    stride: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Take every N-th frame; 1 without --fps."),
    ] = None,
    fps: Annotated[
        float | None, typer.Option(metavar="RATE", help="Take frames by time instead.")
    ] = None,
    sampling: Annotated[Sampling, typer.Option(help="Where clips start.")] = "uniform",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of order and starts.")] = 0,
    split: Annotated[
        str | None, typer.Option(metavar="SPLIT", help="Only samples of this split.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only samples for which this is true.")
    ] = None,
    samples: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Follow at most so many, and shrink caches alike."),
    ] = 2000,
    videos: Annotated[
        int, typer.Option(metavar="N", min=0, help="Assume so many equal videos.")
    ] = 0,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0, help="Length of an assumed video.")
    ] = 60,
    video_fps: Annotated[float, typer.Option(metavar="RATE", min=1, help="Its frame rate.")] = 30,
    gop_frames: Annotated[
        int, typer.Option(metavar="N", min=1, help="Its frames from keyframe to keyframe.")
    ] = 250,
    video_bytes_per_s: Annotated[
        str, typer.Option(metavar="SIZE", help="Its bytes a second.")
    ] = "625kB",
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> int:
    """Tell what nodes with caches would read of the store, without reading or decoding anything.

    Follows every clip through the loader's own order, to the GOPs that the tables name, and to
    the cache of the node that gets it. Only tables are read, and of raw videos their indexes.
    """
    from dstream.loader.gop_layout import GopLayout
    from dstream.loader.plan import Window
    from dstream.loader.simulate import Cluster
    from dstream.units import parse_bytes

    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    _check(context, target, videos, epochs, resume_nodes, resume_at)
    if stride is not None and fps is not None:
        raise InvalidInputError("give --stride or --fps, not both")
    resume_at = 0.5 if resume_at is None else resume_at
    stride = None if fps is not None else stride or 1
    if target:
        clips = open_clips(
            call,
            target,
            {},
            split=split,
            where=where,
            recipe="",
            frames=frames,
            stride=stride,
            fps=fps,
            sampling=sampling,
            seed=seed,
        )
        layout = GopLayout.of_source(clips.source, clips.settings, samples)
        share = layout.slots.total / len(clips)
    else:
        followed = min(videos, samples)
        layout = GopLayout.even(
            videos=followed,
            seconds=seconds,
            rate=video_fps,
            gop_frames=gop_frames,
            bytes_per_s=parse_bytes(video_bytes_per_s),
            window=Window(frames, stride, fps),
            sampling=sampling,
        )
        share = followed / videos
    cache_bytes = round(parse_bytes(cache) * share)
    cluster = Cluster(nodes, ranks_per_node, batch_size, cache_bytes)
    lives = [(cluster,)] + (
        [(cluster, replace(cluster, nodes=resume_nodes))] if resume_nodes else []
    )
    orders = [
        _order(layout, kind, seed, partitions, window_clips, share, [nodes, resume_nodes or nodes])
        for kind in (("affine", "global") if shuffle == "both" else (shuffle,))
    ]
    runs = [_follow(layout, order, life, epochs, resume_at) for order in orders for life in lives]
    document = {
        "target": target or None,
        "followed_share": share,
        "clips": layout.slots.total,
        "gops": len(layout.size_bytes),
        "bytes": int(layout.size_bytes.sum()),
        "cluster": cluster,
        "runs": runs,
    }
    call.out.result(document, _parts(layout, share, cluster, runs))
    return 0


def _check(
    context: typer.Context,
    target: str,
    videos: int,
    epochs: int,
    resume_nodes: int | None,
    resume_at: float | None,
) -> None:
    """Refuse options that would go unheard."""
    if not target and not videos:
        raise InvalidInputError("give a dataset or a source, or say what to assume with --videos N")
    if target:
        for name in ("videos", "seconds", "video_fps", "gop_frames", "video_bytes_per_s"):
            source = context.get_parameter_source(name)
            if source is not None and source.name != "DEFAULT":
                raise InvalidInputError(
                    f"--{name.replace('_', '-')} says what to assume where nothing is there yet: "
                    f"leave it out, or {target}"
                )
    elif any(context.params[name] is not None for name in ("split", "where")):
        raise InvalidInputError("--split and --where need a dataset: assumed videos have neither")
    if resume_at is not None and (resume_nodes is None or resume_at >= epochs):
        raise InvalidInputError(
            f"--resume-at {resume_at:g} needs --resume-nodes, and more --epochs than {resume_at:g}"
        )


def _order(
    layout: GopLayout,
    kind: Shuffle,
    seed: int,
    partitions: int | None,
    window_clips: int | None,
    share: float,
    nodes: Sequence[int],
) -> Order:
    from dstream.loader.partitions import partition_settings
    from dstream.loader.plan import Order
    from dstream.loader.simulate import shrunk

    is_affine = kind == "affine"
    settings = partition_settings(
        round(layout.slots.total / share),
        is_affine=is_affine,
        partitions=partitions if is_affine else None,
        window_clips=window_clips if is_affine else None,
        clips_per_gop=1,
    )
    if settings is not None:
        settings = shrunk(settings, share, nodes)
    return Order.of(layout.slots, seed, layout.sampling, kind, settings)


def _follow(
    layout: GopLayout, order: Order, life: Sequence[Cluster], epochs: int, resume_at: float
) -> dict[str, Any]:
    """The document of one order and job; a second cluster goes on where the first stopped."""
    from dstream.loader.simulate import simulate

    costs = simulate(
        order,
        layout,
        life[0],
        epochs=epochs,
        resumed=life[1] if len(life) > 1 else None,
        resumed_at=round(resume_at * order.total),
    )
    return {
        "shuffle": order.shuffle,
        "nodes": [cluster.nodes for cluster in life],
        "resumed_at_epoch": resume_at if len(life) > 1 else None,
        "epochs": [{**asdict(cost), "amplification": cost.amplification} for cost in costs],
    }


def _parts(
    layout: GopLayout, share: float, cluster: Cluster, runs: list[dict[str, Any]]
) -> list[Part]:
    from dstream.units import format_bytes

    data_bytes = int(layout.size_bytes.sum())
    facts: list[tuple[str, object]] = [
        (
            "clips",
            f"{layout.slots.total:,}, {layout.slots.total / len(layout.size_bytes):.3g} a GOP",
        ),
        ("data", f"{format_bytes(data_bytes)} in {counted(len(layout.size_bytes), 'GOP')}"),
        (
            "caches",
            f"{counted(cluster.nodes, 'node')}, {format_bytes(cluster.cache_bytes)} each: "
            f"{cluster.nodes * cluster.cache_bytes / data_bytes:.2f} of the data together",
        ),
    ]
    if share < 1:
        facts.append(("followed", f"{share:.3g} of the clips; caches and windows are shrunk alike"))
    rows = [
        _row(run["shuffle"], ", then ".join(map(str, run["nodes"])), epoch)
        for run in runs
        for epoch in run["epochs"]
    ]
    titles = (
        "order",
        "nodes",
        ">epoch",
        ">from store",
        ">x unique",
        ">busiest node",
        ">lost, twice",
    )
    return [Facts(facts), Table(titles, rows)]


def _row(shuffle: str, nodes: str, cost: dict[str, Any]) -> tuple[object, ...]:
    from dstream.units import format_bytes

    return (
        shuffle,
        nodes,
        cost["epoch"] + 1,
        format_bytes(cost["bytes_read"]),
        f"{cost['amplification']:.3f}",
        format_bytes(cost["bytes_read_busiest"]),
        f"{cost['clips_lost']}, {cost['clips_repeated']}",
    )
