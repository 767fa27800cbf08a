"""Running many jobs on a few threads, until the first one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def run_all(jobs: Iterable[T], work: Callable[[T], R], threads: int, name: str) -> list[R]:
    """``work`` of every job, in the order of the jobs.

    Raises:
        Whatever the first failing job raised. Jobs that had begun are waited for, others are
        dropped.
    """
    stop = threading.Event()

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
        finally:
            # Reached with unfinished jobs only after a failure or an interrupt.
            stop.set()
    failures = [future.exception() for future in futures]
    for failure in failures:
        if failure is not None and not isinstance(failure, CancelledError):
            raise failure
    return [future.result() for future in futures]
