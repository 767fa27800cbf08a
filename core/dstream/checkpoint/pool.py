"""Running many jobs on a few threads, until the first one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def run_all(jobs: Iterable[T], work: Callable[[T], R], threads: int, name: str) -> list[R]:
    """``work`` of every job, in the order of the jobs.

    Raises:
        Whatever the first failing job raised; jobs that had not begun are dropped.
    """
    with ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix=name) as pool:
        futures: list[Future[R]] = []
        try:
            futures = [pool.submit(work, job) for job in jobs]
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future.done() and not future.cancelled() and future.exception() is not None:
                    future.result()
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
