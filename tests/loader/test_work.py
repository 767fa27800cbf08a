"""The queues between the stages, by themselves."""

from typing import Any

import pytest

from dstream.loader.plan import Order
from dstream.loader.steps import Step
from dstream.loader.work import Work


def _fail(number: int) -> Step:
    raise MemoryError("no room for the plan")


def test_a_plan_that_fails_is_not_taken_for_one_that_is_through() -> None:
    nothing: Any = None
    work = Work(Order(8, 0), map(_fail, [0]), nothing, nothing, 2, 4, 1)
    with pytest.raises(MemoryError):
        work.next_task()
    assert work.next_task() is None  # another thread: a generator that raised is at its end
    with pytest.raises(MemoryError):
        work.next_batch(lambda: 1.0)
