"""What ``dstream bench --loader --json`` prints, and the sentence that sums it up.

A field is added, removed or changed in meaning only with a new :data:`SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from dstream.diagnose.bench.document import document_json, of_median_rate, read_document

SCHEMA = "dstream.bench-loader/1"
_FEWEST_BATCHES = 3
_KEEPS_UP = 0.05
"""Share of the time that a consumer may wait before its loader counts as too slow."""
_BUSY = 0.85
"""Share of its time beyond which a core counts as busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRun:
    """One pass over a fresh loader, counted after its warm-up."""

    batches: int
    batches_per_second: float
    samples: int | None
    """None where the batches do not tell how many they hold."""
    samples_per_second: float | None
    samples_by: str
    """What told: ``its first axis``, ``the first axis of ['video']``, ``--batch-size`` ..."""
    batch_bytes: float | None
    """Mean bytes of the arrays and byte strings in a batch."""
    factory_s: float
    """The factory's call."""
    first_batch_s: float
    """From the factory's return to the first batch: workers' start, opening, first reads."""
    wall_s: float
    """From the end of the warm-up to the end of the consumer's last step."""
    wait_s: float
    """Of it, the consumer waiting for batches."""
    wait_share: float
    in_line_share: float
    """Of ``wait_s``, what the consumer's own thread computed: near 1 it makes the batches."""
    exhausted: bool
    """The loader ended by itself."""
    cpu_s: float | None
    """CPU seconds in ``wall_s`` of this process and all that it started, ended ones included.
    None, as all that follows, where there is no ``/proc``."""
    cores_busy: float | None
    """``cpu_s`` over ``wall_s``."""
    other_cores_busy: float | None
    """Cores that other programs kept busy; None as well where it may not run on all CPUs."""
    busiest_thread_share: float | None
    """Of ``wall_s``, what the busiest thread computed."""
    processes: int
    """Most at the same time; 0 where there is no ``/proc``."""
    peak_rss_bytes: int | None
    """Most memory of all processes together; what they share is counted for each of them."""
    peak_pss_bytes: int | None
    """The same with shared memory counted once."""


class LoaderCause(StrEnum):
    """What sets the pace."""

    CONSUMER = "consumer"
    """The step: the loader keeps up."""
    CPU = "cpu"
    """All cores compute."""
    OTHERS = "other-programs"
    """Other programs take the cores."""
    IN_LINE = "in-line"
    """The consumer's own thread makes the batches, while its step waits."""
    ONE_THREAD = "one-thread"
    """A thread or worker computes all the time while cores are idle."""
    WAITING = "waiting"
    """No thread is busy: the store, a disk, or too few workers to hide their delay."""
    UNKNOWN = "unknown"
    """Too little was counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderVerdict:
    """Whether a loader keeps up with its consumer, and what to change."""

    cause: LoaderCause
    keeps_up: bool | None
    """None without a step to keep up with, or where too little was counted."""
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderDocument:
    """Runs of one loader."""

    target: str
    settings: Mapping[str, Any]
    """What was asked for: the factory's arguments, step_ms, warmup and so on."""
    versions: Mapping[str, Any]
    cores: float
    """That the loader's processes may use."""
    runs: tuple[LoaderRun, ...]
    verdict: LoaderVerdict
    """Of the run of median rate."""
    unit: str
    """Of ``repeats``: ``samples/s``, or ``batches/s`` where samples are not known."""
    repeats: tuple[float, ...]
    """The rate of each run."""
    schema: str = SCHEMA

    def as_json(self) -> dict[str, Any]:
        """The document as JSON types."""
        return document_json(self)

    @classmethod
    def parse(cls, document: str | Mapping[str, Any]) -> LoaderDocument:
        """Read what :meth:`as_json` gave.

        Raises:
            InvalidInputError: it is no such document, or one of another version.
        """
        parsed: LoaderDocument = read_document(cls, SCHEMA, document)
        return parsed


def typical(runs: Sequence[LoaderRun]) -> LoaderRun:
    """The run that is judged."""
    return of_median_rate(runs, lambda run: run.batches_per_second)


def summed_up(
    target: str,
    runs: Sequence[LoaderRun],
    *,
    settings: Mapping[str, Any],
    versions: Mapping[str, Any],
    step_s: float,
    cores: float,
    interrupted: str = "",
) -> LoaderDocument:
    """The document of some runs, at least one; ``interrupted`` says where somebody ended them."""
    sampled = [run.samples_per_second for run in runs if run.samples_per_second is not None]
    known = len(sampled) == len(runs)
    verdict = judge(typical(runs), step_s, cores)
    if interrupted:
        settings = {**settings, "interrupted": interrupted}
        told = f"Interrupted {interrupted}, so this is of what was counted until then. "
        verdict = replace(verdict, sentence=told + verdict.sentence)
    return LoaderDocument(
        target=target,
        settings=settings,
        versions=versions,
        cores=cores,
        runs=tuple(runs),
        verdict=verdict,
        unit="samples/s" if known else "batches/s",
        repeats=tuple(sampled if known else [run.batches_per_second for run in runs]),
    )


def judge(run: LoaderRun, step_s: float, cores: float) -> LoaderVerdict:
    """Name what sets the pace of a run.

    Args:
        run: what was counted.
        step_s: the consumer's step; 0 where it only takes batches.
        cores: that the loader's processes may use.
    """
    if run.batches < _FEWEST_BATCHES:
        came = "1 batch" if run.batches == 1 else f"{run.batches} batches"
        ended = "the loader ended" if run.exhausted else "counting ended"
        return LoaderVerdict(
            cause=LoaderCause.UNKNOWN,
            keeps_up=None,
            sentence=f"Only {came} came between the warm-up and when {ended}, which "
            "tells nothing: give the loader more data, --warmup less or --seconds more.",
        )
    step = f"a step of {1000 * step_s:.3g} ms"
    waits = f"the consumer waits {run.wait_share:.0%} of the time"
    if step_s and run.wait_share <= _KEEPS_UP:
        return LoaderVerdict(
            cause=LoaderCause.CONSUMER,
            keeps_up=True,
            sentence=f"The loader keeps up with {step}: {waits}, and the step sets the pace.",
        )
    cause, why = _why_slow(run, cores)
    pace_ms = 1000 / run.batches_per_second
    if step_s:
        head = (
            f"The loader does not keep up with {step}: {waits}, and a batch takes {pace_ms:.3g} ms."
        )
    else:
        head = f"At its top speed the loader takes {pace_ms:.3g} ms a batch."
    return LoaderVerdict(cause=cause, keeps_up=False if step_s else None, sentence=f"{head} {why}")


def _why_slow(run: LoaderRun, cores: float) -> tuple[LoaderCause, str]:
    if run.cores_busy is None or run.busiest_thread_share is None:
        return LoaderCause.UNKNOWN, "What its processes did meanwhile is not told on this system."
    busy = f"{run.cores_busy:.1f} of {cores:.3g} cores are busy"
    if run.cores_busy >= _BUSY * cores:
        return (
            LoaderCause.CPU,
            f"It is CPU-bound: {busy}. More cores or cheaper decoding (smaller frames, fewer "
            "frames that nobody needs) help, more workers do not.",
        )
    others = run.other_cores_busy or 0.0
    if run.cores_busy + others >= _BUSY * cores:
        return (
            LoaderCause.OTHERS,
            f"Other programs are in its way: they keep {others:.1f} of {cores:.3g} cores busy, the "
            f"loader {run.cores_busy:.1f}. Measure again on a quiet machine.",
        )
    if run.in_line_share >= _BUSY:
        return (
            LoaderCause.IN_LINE,
            f"Its batches are made in the consumer's own thread ({run.in_line_share:.0%} of the "
            f"wait is computing there), and {busy}. Workers or threads would make them meanwhile.",
        )
    if run.busiest_thread_share >= _BUSY:
        return (
            LoaderCause.ONE_THREAD,
            f"It is CPU-bound with cores to spare: {busy}, and a thread computes "
            f"{run.busiest_thread_share:.0%} of the time. More workers or threads help.",
        )
    return (
        LoaderCause.WAITING,
        f"It waits: {busy}, and no thread computes more than {run.busiest_thread_share:.0%} of "
        "the time. More workers, more requests at once or a faster store help, more cores do not.",
    )
