from __future__ import annotations

import pytest
from hypothesis import settings

from dstream.catalog import compaction
from lifecycle_machine import LifecycleMachine


class SmallTailMachine(LifecycleMachine):
    """The same with catalog shards from the third change on."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(compaction, "MAX_TAIL", 3)
        self.patch.setattr("dstream.catalog.commit.MAX_TAIL", 3)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patch.undo()


LifecycleMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
SmallTailMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestLifecycle = LifecycleMachine.TestCase
TestLifecycleInShards = SmallTailMachine.TestCase
