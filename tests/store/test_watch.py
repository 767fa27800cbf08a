"""Who looks at the time while threads are inside C."""

from __future__ import annotations

import threading

import pytest

from dstream.store.s3_watch import Watch


class Looked:
    def __init__(self) -> None:
        self.seen = threading.Event()

    def look(self, now_s: float) -> None:
        self.seen.set()


def test_the_watch_ends_when_nothing_is_under_way_and_begins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dstream.store.s3_watch.SLICE_S", 0.01)
    watch = Watch()
    for _ in range(2):
        looked, before = Looked(), set(threading.enumerate())
        watch.add(looked)
        assert looked.seen.wait(20)
        (thread,) = set(threading.enumerate()) - before
        watch.remove(looked)
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_look_that_fails_leaves_no_later_one_unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dstream.store.s3_watch.SLICE_S", 0.01)

    class Failing:
        def look(self, now_s: float) -> None:
            raise RuntimeError("on purpose")

    watch, failing, looked, before = Watch(), Failing(), Looked(), set(threading.enumerate())
    watch.add(failing)
    (thread,) = set(threading.enumerate()) - before
    thread.join(20)
    watch.remove(failing)
    watch.add(looked)
    assert looked.seen.wait(20)
    watch.remove(looked)
