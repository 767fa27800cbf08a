"""What ranks tell each other through torch.distributed. It is used where it is in use already."""

from __future__ import annotations

import sys
from typing import Any

from dstream.errors import InvalidInputError


def distributed() -> Any:
    """The module ``torch.distributed`` where this process belongs to a group; else None.

    A process that has not imported torch has no group: torch is not imported for the question.
    """
    module: Any = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module


def group_place() -> tuple[int, int] | None:
    """Rank and size of the default group, or None."""
    dist = distributed()
    return None if dist is None else (int(dist.get_rank()), int(dist.get_world_size()))


def gathered(value: object, what: str, group: Any = None) -> list[Any]:
    """``value`` of every rank, in rank order. Every rank of the group calls it.

    Args:
        value: what this rank has; it is pickled.
        what: names the caller in the error.
        group: torch's; all ranks by default.

    Raises:
        InvalidInputError: there is no group.
    """
    dist = distributed()
    if dist is None:
        raise InvalidInputError(
            f"{what} asks the other ranks, and torch.distributed is not initialised: call "
            "torch.distributed.init_process_group() first"
        )
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


class Vote:
    """Asks all ranks of a group whether any of them says yes. Alone, it is the own answer.

    Making one is a collective call, and so is each question. On the CPU, also where the default
    group is one of GPUs: a question must not wait for their queues.
    """

    def __init__(self, group: Any = None) -> None:
        self._dist = distributed()
        self._group = group
        if self._dist is not None and group is None and self._dist.get_backend() != "gloo":
            self._group = self._dist.new_group(backend="gloo")

    @property
    def is_alone(self) -> bool:
        """There is nobody to ask."""
        return self._dist is None

    def any(self, mine: bool) -> bool:
        """Whether one of the ranks said True; every rank gets the same answer."""
        if self._dist is None:
            return mine
        import torch

        flag = torch.tensor([int(mine)], dtype=torch.int32)
        self._dist.all_reduce(flag, op=self._dist.ReduceOp.MAX, group=self._group)
        return bool(flag.item())
