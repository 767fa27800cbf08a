"""Measures any iterable of batches in this process, whoever made it."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from dstream.clock import Clock
from dstream.diagnose.bench.batches import bytes_of, samples_of
from dstream.diagnose.bench.interruption import InterruptedRunError, Interruption
from dstream.diagnose.bench.loader_document import LoaderRun
from dstream.diagnose.bench.processes import Watch
from dstream.errors import InvalidInputError, NotFoundError

Factory = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How one run of a loader is made."""

    warmup: int
    """Batches that are taken first and not counted: workers start, queues and caches fill."""
    seconds: float | None
    """Stop when the counted batches took so long."""
    samples: int | None
    """Stop after so many counted samples, or batches where samples are not known."""
    step_s: float
    """What the consumer does with each batch takes so long."""
    batch_size: int | None
    """Samples in each batch; None finds it in the batches."""


def find_factory(name: str) -> Factory:
    """The callable ``module:factory``; the module may be in the current directory.

    Raises:
        NotFoundError: there is no such module, or no such name in it.
        InvalidInputError: the name has another form, the module fails, or it is not callable.
    """
    where, colon, attributes = name.partition(":")
    if not (where and colon and attributes):
        raise InvalidInputError(f"--loader {name}: write MODULE:FACTORY such as train:make_loader")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # spawned workers are given it as well
    try:
        found: Any = importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise _failed(name, "its module", error) from error
        raise NotFoundError(
            f"--loader {name}: there is no module {where!r} on sys.path or in {here}", module=where
        ) from error
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise _failed(name, "its module", error) from error
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise NotFoundError(
                f"--loader {name}: module {where!r} has no {attributes!r}", module=where
            )
        found = getattr(found, attribute)
    if not callable(found):
        raise InvalidInputError(f"--loader {name} is no function but {type(found).__name__}")
    return cast("Factory", found)


def _failed(name: str, what: str, error: BaseException) -> InvalidInputError:
    return InvalidInputError(
        f"--loader {name}: {what} raised {type(error).__name__}: {error}", loader=name
    )


def measure_runs(
    repeat: int, once: Callable[[], LoaderRun], interruption: Interruption
) -> tuple[list[LoaderRun], str]:
    """So many runs, or those before somebody interrupts, and where that was; else an empty text.

    A run that was cut off counts only where there is no other. ``once`` is a :func:`measure` that
    the same interruption ends; errors are those of it.
    """
    runs: list[LoaderRun] = []
    for number in range(1, repeat + 1):
        try:
            run = once()
        except InterruptedRunError:
            if not runs:
                raise
            return runs, f"in run {number} of {repeat}"
        if interruption.came:
            return runs or [run], f"in run {number} of {repeat}"
        runs.append(run)
    return runs, ""


def measure(
    name: str,
    factory: Factory,
    arguments: Mapping[str, Any],
    limits: Limits,
    clock: Clock,
    told: Callable[[int], None],
    interruption: Interruption,
) -> LoaderRun:
    """Make a loader, take its batches as a training loop would, and count.

    Args:
        name: of the factory, for errors.
        factory: gives an iterable of batches, with an end or without.
        arguments: of its call.
        limits: of the run.
        clock: measures, and waits for the consumer's step.
        told: is called after each batch with how many were taken.
        interruption: ends counting early.

    Raises:
        KeyboardInterrupt: it was interrupted before anything was counted.
        InvalidInputError: the factory fails, gives nothing that can be iterated or no batch, or
            the loader fails in the middle.
    """
    began_s = clock.monotonic_s()
    try:
        with interruption.breaking():
            loader: Any = factory(**arguments)
    except (Exception, SystemExit) as error:
        raise _failed(name, "the factory", error) from error
    made_s = clock.monotonic_s()
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise InvalidInputError(
            f"--loader {name} gave {type(loader).__name__}, which cannot be iterated over"
        )
    with ExitStack() as stack:
        if hasattr(loader, "close"):
            stack.callback(_close, name, loader)
        batches = stack.enter_context(closing(_guarded(name, loader, told)))
        with interruption.breaking():
            first = next(batches, _END)
            first_s = clock.monotonic_s()
            if first is _END:
                raise InvalidInputError(f"--loader {name} gave no batch")
            for _ in islice(batches, limits.warmup - 1):
                clock.sleep(limits.step_s)
        with Watch() as watch:
            counted = _counted(batches, limits, clock, interruption)
    wall_s, wait_s = counted.wall_s or math.inf, counted.wait_s  # of nothing, all rates are 0
    return LoaderRun(
        batches=counted.batches,
        batches_per_second=counted.batches / wall_s,
        samples=counted.samples,
        samples_per_second=_over(counted.samples, wall_s),
        samples_by=counted.samples_by,
        batch_bytes=_over(counted.size_bytes, counted.batches),
        factory_s=made_s - began_s,
        first_batch_s=first_s - made_s,
        wall_s=counted.wall_s,
        wait_s=wait_s,
        wait_share=wait_s / wall_s,
        in_line_share=counted.wait_cpu_s / (wait_s or math.inf),
        exhausted=counted.exhausted,
        cpu_s=watch.cpu_s(),
        cores_busy=_over(watch.cpu_s(), wall_s),
        other_cores_busy=_over(watch.other_cpu_s(), wall_s),
        busiest_thread_share=_over(watch.busiest_thread_s(), wall_s),
        processes=watch.processes,
        peak_rss_bytes=watch.peak_rss_bytes,
        peak_pss_bytes=watch.peak_pss_bytes,
    )


def _close(name: str, loader: Any) -> None:
    try:
        loader.close()
    except (Exception, SystemExit) as error:
        raise _failed(name, "closing the loader", error) from error


def _over(amount: float | None, whole: float) -> float | None:
    return None if amount is None else amount / whole


_END = object()


def _guarded(name: str, loader: Any, told: Callable[[int], None]) -> Generator[Any, None, None]:
    """The loader's batches; an error of its own comes out with its name."""
    taken = 0
    try:
        for batch in loader:
            taken += 1
            yield batch
            told(taken)
    except (Exception, SystemExit) as error:
        raise _failed(name, f"the loader, after {taken:,} batches,", error) from error


@dataclass(slots=True)
class _Counted:
    batches: int = 0
    samples: int | None = 0
    samples_by: str = ""
    size_bytes: int | None = None
    wall_s: float = 0.0
    wait_s: float = 0.0
    wait_cpu_s: float = 0.0
    """Of the consumer's own thread, in ``wait_s``."""
    exhausted: bool = False

    def waited(self, asked: tuple[float, float], now_s: float) -> None:
        """For a batch; when it was asked for, by the clock and by the thread's CPU time."""
        asked_s, asked_cpu_s = asked
        self.wait_s += now_s - asked_s
        self.wait_cpu_s += time.thread_time() - asked_cpu_s

    def add(self, batch: Any, batch_size: int | None) -> None:
        self.batches += 1
        found = samples_of(batch) if batch_size is None else (batch_size, "--batch-size")
        if found is None or self.samples is None:
            self.samples, self.samples_by = None, ""
        else:
            self.samples += found[0]
            self.samples_by = self.samples_by or found[1]
        if (size_bytes := bytes_of(batch)) is not None:
            self.size_bytes = (self.size_bytes or 0) + size_bytes

    def enough(self, limits: Limits) -> bool:
        if limits.seconds is not None and self.wall_s >= limits.seconds:
            return True
        done = self.batches if self.samples is None else self.samples
        return limits.samples is not None and done >= limits.samples


def _counted(
    batches: Iterator[Any], limits: Limits, clock: Clock, interruption: Interruption
) -> _Counted:
    """Take batches until there were enough, or somebody interrupts; then there is at least one."""
    counted = _Counted()
    began_s = clock.monotonic_s()
    asked: tuple[float, float] | None = None
    try:
        with interruption.breaking():
            while not counted.enough(limits):
                asked = clock.monotonic_s(), time.thread_time()
                batch = next(batches, _END)
                if batch is _END:
                    counted.exhausted = True
                    break
                counted.waited(asked, clock.monotonic_s())
                asked = None
                counted.add(batch, limits.batch_size)
                clock.sleep(limits.step_s)
                counted.wall_s = clock.monotonic_s() - began_s
    except InterruptedRunError:
        if not counted.batches:
            raise
        now_s = clock.monotonic_s()
        counted.wall_s = now_s - began_s
        if asked is not None:
            counted.waited(asked, now_s)
    return counted
