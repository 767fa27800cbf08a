"""Pre-emption ends a loop between two batches; nothing of it stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import dstream
from dstream.errors import InvalidInputError
from dstream.loader.pipeline import Pipeline
from loader_data import batch_hash, videos


@pytest.fixture
def clips(tmp_path: Path) -> dstream.Clips:
    videos(tmp_path / "source", 1, frames=48, size=(64, 64))
    return dstream.clips(tmp_path / "source", frames=4, clips_per_file=8, array="numpy")


def test_a_signal_ends_the_loop_and_the_rest_follows(clips: dstream.Clips, tmp_path: Path) -> None:
    with clips.loader(1, epochs=2) as loader:
        expected = [batch_hash(batch) for batch in loader]
    path = tmp_path / "state.json"
    before = signal.getsignal(signal.SIGTERM)
    got = []
    with clips.loader(1, epochs=2) as loader:
        with loader.stopping_on_signals(state_path=path) as stop:
            for batch in loader:
                got.append(batch_hash(batch))
                if len(got) == 5:
                    os.kill(os.getpid(), signal.SIGTERM)
                    os.kill(os.getpid(), signal.SIGTERM)  # launchers do it twice
            assert stop.stopped
            assert stop.received is signal.SIGTERM
            assert list(loader) == []
        assert signal.getsignal(signal.SIGTERM) is before
        assert json.loads(path.read_text()) == loader.state_dict()
    with clips.loader(1, epochs=2) as loader:
        loader.load_state_dict(json.loads(path.read_text()))
        assert got + [batch_hash(batch) for batch in loader] == expected
    assert len(got) == 5


def test_a_wait_for_a_batch_is_given_up(
    clips: dstream.Clips, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with clips.loader(1) as loader, loader.stopping_on_signals(state_path=tmp_path / "s") as stop:
        next(loader)
        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "next", lambda pipeline: threading.Event().wait(60))
            signaller = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
            signaller.start()
            assert list(loader) == []
            signaller.join()
        assert stop.stopped
        assert json.loads((tmp_path / "s").read_text())["position"] == loader.position == 1
    assert len(list(loader)) == 7


def test_without_a_signal_nothing_changes(clips: dstream.Clips, tmp_path: Path) -> None:
    with clips.loader(2) as loader:
        with loader.stopping_on_signals(signal.SIGTERM, signal.SIGUSR1) as stop:
            assert len(list(loader)) == 4
        assert not stop.stopped
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_handlers_come_back_after_an_error(clips: dstream.Clips) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with clips.loader(2) as loader:
        with pytest.raises(ZeroDivisionError), loader.stopping_on_signals():
            raise ZeroDivisionError
        assert signal.getsignal(signal.SIGTERM) is before
        assert len(list(loader)) == 4


def test_every_so_many_batches_is_enough(clips: dstream.Clips) -> None:
    with clips.loader(1) as loader, loader.stopping_on_signals(every=3) as stop:
        next(loader)
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(list(loader)) == 2
        assert stop.stopped
    with clips.loader(1) as loader, pytest.raises(InvalidInputError, match="every"):
        with loader.stopping_on_signals(every=0):
            pass


def test_only_the_main_thread_takes_signals(clips: dstream.Clips) -> None:
    caught: list[BaseException] = []

    def enter(loader: dstream.Loader) -> None:
        try:
            with loader.stopping_on_signals():
                pass
        except InvalidInputError as error:
            caught.append(error)

    with clips.loader(1) as loader:
        thread = threading.Thread(target=enter, args=(loader,))
        thread.start()
        thread.join()
    assert "main thread" in str(caught[0])


def test_uneven_ranks_are_refused(clips: dstream.Clips) -> None:
    with clips.loader(1, rank=0, world_size=3, last="short") as loader:  # 8 = 3 + 3 + 2
        with pytest.raises(InvalidInputError, match="2 clips for 3 ranks"):
            with loader.stopping_on_signals():
                pass


CHILD = """
import os, signal, sys
import dstream
clips = dstream.clips(sys.argv[1], frames=4, array="numpy", clips_per_file=8)
with clips.loader(1, epochs=None) as loader, loader.stopping_on_signals() as stop:
    next(loader)
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(7)  # the signal did not end the child
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, stop.received, flush=True)
    for number, batch in enumerate(loader):
        print("batch", flush=True)
print("saved", loader.position > 1)
"""


def test_a_forked_child_dies_of_its_signal_and_the_parent_leaves_well(tmp_path: Path) -> None:
    videos(tmp_path, 1, frames=48, size=(64, 64))
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline().split() == [str(-signal.SIGTERM), "None"]
    assert child.stdout.readline() == "batch\n"
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "saved True"
