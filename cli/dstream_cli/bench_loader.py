"""``dstream bench --loader``: any Python iterable of batches, measured in this process."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

from dstream_cli.options import EXIT_INTERRUPTED, Common, named_values
from dstream_cli.progress import ProgressLine
from dstream_cli.render import Facts, Output, Part

if TYPE_CHECKING:
    from dstream.diagnose.bench.loader_document import LoaderDocument


def bench_loader(
    call: Common, name: str, arguments: Sequence[str], repeat: int, **limited: Any
) -> int:
    """Measure the loader that ``name`` makes, ``repeat`` times anew, and print what came out.

    ``limited`` are the fields of :class:`~dstream.diagnose.bench.any_loader.Limits`.
    """
    from dstream.clock import SystemClock
    from dstream.diagnose.bench.any_loader import Limits, find_factory, measure, measure_runs
    from dstream.diagnose.bench.interruption import Interruption
    from dstream.diagnose.bench.loader_document import summed_up
    from dstream.diagnose.bench.processes import usable_cores
    from dstream.diagnose.bench.versions import versions

    given, limits, clock = parse_arguments(arguments), Limits(**limited), SystemClock()
    with prints_on_stderr(call.out), ProgressLine(call.out, clock, "bench") as line:
        factory = find_factory(name)

        def told(batches: int) -> None:
            line.update(done=batches, total=None, done_bytes=0, total_bytes=None, what="batches")

        interruption = Interruption()
        with interruption.on_signal():
            once = partial(measure, name, factory, given, limits, clock, told, interruption)
            runs, interrupted = measure_runs(repeat, once, interruption)
    document = summed_up(
        name,
        runs,
        settings={
            **{f"--loader-arg {key}": value for key, value in given.items()},
            "step_ms": 1000 * limits.step_s,
            "warmup": limits.warmup,
            "seconds": limits.seconds,
            "samples": limits.samples,
            "batch_size": limits.batch_size,
        },
        versions=versions(),
        step_s=limits.step_s,
        cores=usable_cores(),
        interrupted=interrupted,
    )
    call.out.result(document.as_json(), report_parts(document))
    return EXIT_INTERRUPTED if interrupted else 0


@contextmanager
def prints_on_stderr(out: Output) -> Iterator[None]:
    """Let what the block and its processes print go to stderr: stdout is for the result."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(out.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def parse_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """``k=v`` pairs, each value a Python literal or else text.

    >>> parse_arguments(["workers=4", "size=(180, 320)", "name=a b", "text='4'"])
    {'workers': 4, 'size': (180, 320), 'name': 'a b', 'text': '4'}
    """
    return {key: _literal(text) for key, text in named_values(pairs, "--loader-arg").items()}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def report_parts(document: LoaderDocument) -> list[Part]:
    """The document for people; ``docs/bench.md`` explains the numbers."""
    from dstream.diagnose.bench.loader_document import typical
    from dstream.diagnose.bench.numerals import figures
    from dstream.units import format_bytes, format_duration

    run = typical(document.runs)
    batches = (
        f"{run.batches:,} in {format_duration(run.wall_s)}, {figures(run.batches_per_second)}/s"
    )
    facts: list[tuple[str, object]] = [("batches", batches)]
    if run.samples_per_second is None:
        facts.append(("samples", "the batches do not tell: give --batch-size"))
    elif run.batches:
        facts.append(
            ("samples", f"{run.samples:,} by {run.samples_by}, {figures(run.samples_per_second)}/s")
        )
    if run.batch_bytes is not None:
        facts.append(("a batch", format_bytes(run.batch_bytes)))
    facts += [
        (
            "first batch",
            f"after {format_duration(run.first_batch_s)}, the factory took "
            f"{format_duration(run.factory_s)}",
        ),
        ("waiting", f"{run.wait_share:.0%} of the time"),
    ]
    if run.cpu_s is not None and run.cores_busy is not None:
        processes = "1 process" if run.processes == 1 else f"{run.processes} processes"
        busy = f"{run.cores_busy:.1f} of {document.cores:.3g} cores"
        facts.append(("CPU", f"{run.cpu_s:.3g} s, {busy}, {processes}"))
    if run.peak_rss_bytes is not None:
        shared = (
            "" if run.peak_pss_bytes is None else f" ({format_bytes(run.peak_pss_bytes)} different)"
        )
        facts.append(("memory", f"{format_bytes(run.peak_rss_bytes)} at most{shared}"))
    if len(document.repeats) > 1:
        rates = ", ".join(figures(rate) for rate in document.repeats)
        facts.append(("repeats", f"{rates} {document.unit}"))
    return [Facts(facts), document.verdict.sentence]
