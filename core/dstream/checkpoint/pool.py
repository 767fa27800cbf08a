"""Running many jobs on a few threads, until the first one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def run_all(
    jobs: Iterable[T],
    work: Callable[[T], R],
    threads: int,
    name: str,
    stop: threading.Event | None = None,
) -> list[R]:
    """``work`` of every job, in the order of the jobs.

    Args:
        jobs: what is to be done.
        work: does one.
        threads: jobs at the same time.
        name: of the threads.
        stop: set by the first failure; shared with other calls, it stops them as well.

    Raises:
        Whatever the first failing job raised. Jobs that had begun are waited for, others are
        dropped. ``CancelledError`` where only another call failed.
    """
    stop = stop or threading.Event()

    def one(job: T) -> R:
        if stop.is_set():
            raise CancelledError
        try:
            return work(job)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix=name) as pool:
        futures = [pool.submit(one, job) for job in jobs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            stop.set()  # an interrupt: let nothing more begin
            raise
    failures = [future.exception() for future in futures]
    for failure in failures:
        if failure is not None and not isinstance(failure, CancelledError):
            raise failure
    return [future.result() for future in futures]


def run_groups(
    groups: Sequence[tuple[Sequence[T], int]], work: Callable[[T], R], name: str
) -> None:
    """``work`` of every job of every group, the groups at the same time.

    Args:
        groups: (jobs, threads) each.
        work: does one.
        name: of the threads.

    Raises:
        Whatever the first failing job raised.
    """
    stop = threading.Event()
    run_all(
        [group for group in groups if group[0]],
        lambda group: run_all(group[0], work, group[1], name, stop),
        len(groups),
        f"{name}-group",
    )
