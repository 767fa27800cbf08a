"""Both engines beside other threads, signals, a store that is closed, and forks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dstream.clock import SystemClock
from dstream.errors import StorageError
from dstream.measure import Meter
from dstream.store import libcurl
from dstream.store.curl_handles import Handles
from dstream.store.patience import Outage, patient
from dstream.store.s3_connection import Endpoint
from dstream.store.s3_curl import CurlConnection
from s3_services import require_native
from s3_stub import DATA, Reply, Request, Stub, bare_store, in_another_thread, ranged


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("stall", [{"stall_s": 20.0}, {"stall_s": 20.0, "stall_at": 5000}])
def test_a_thread_that_is_to_stop_does(
    ranged_stub: Stub, each_thread: Any, stall: dict[str, Any]
) -> None:
    ranged_stub.answer = lambda request: ranged(request, **stall)
    stop = threading.Event()
    store = bare_store(ranged_stub, stall_timeout_s=60.0)

    def read() -> None:
        with patient(Outage(0.0, "it", Meter(), SystemClock()), stop.is_set):
            threading.Timer(0.3, stop.set).start()
            store.get("k", 0, 100_000)

    with pytest.raises(StorageError) as caught:
        each_thread(read)
    assert caught.value.facts["code"] == "read-deadline"
    received = caught.value.facts["received_bytes"]
    assert isinstance(received, int)
    assert (received > 5000) is ("stall_at" in stall)
    store.close()


@pytest.mark.usefixtures("each_engine")
def test_ctrl_c_is_heard_while_an_answer_is_awaited(ranged_stub: Stub) -> None:
    answered = threading.Event()

    def answer(request: Request) -> Reply:
        ranged_stub.stopped.wait(20.0)
        answered.set()
        return ranged(request)

    ranged_stub.answer = answer
    store = bare_store(ranged_stub, stall_timeout_s=60.0)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        store.get("k", 0, 10)
    assert not answered.is_set()
    ranged_stub.answer = ranged
    assert store.get("k", 0, 10).data == DATA[:10]
    store.close()


def test_what_a_callback_meets_comes_out(
    ranged_stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_native()

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    store = bare_store(ranged_stub, engine="native")
    monkeypatch.setattr(CurlConnection, "_connected", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.get("k", 0, 10)
    assert ranged_stub.requests == []
    store.close()


def test_a_connection_is_not_freed_while_another_thread_uses_it(
    ranged_stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_native()
    store, prepare = bare_store(ranged_stub, engine="native"), Handles.prepare

    def closed_meanwhile(handles: Handles, *given: Any) -> None:
        in_another_thread(store.close)
        prepare(handles, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Handles, "prepare", closed_meanwhile)
        assert store.get("k", 0, 70_000).data == DATA[:70_000]
    assert store.get("k", 1, 70_000).data == DATA[1:70_000]
    store.close()


def test_a_forked_child_does_not_end_its_parents_transfer(ranged_stub: Stub) -> None:
    require_native()
    ranged_stub.answer = lambda request: ranged(request, stall_s=1.0)
    loaded = libcurl.load()
    assert not isinstance(loaded, str)
    endpoint = Endpoint(ranged_stub.endpoint_url, None, None, 1.0)
    connection = CurlConnection(endpoint, loaded)
    with ThreadPoolExecutor(1) as pool:
        request = endpoint.request("/bucket/k", {})
        reading = pool.submit(connection.get, request, "0-69999", lambda _: 30.0, 70_000)
        while not ranged_stub.requests:
            SystemClock().sleep(0.01)
        child = multiprocessing.get_context("fork").Process(target=connection.close)
        child.start()
        child.join(30)
        assert child.exitcode == 0
        assert reading.result().read() == DATA[:70_000]
    connection.close()


def test_a_store_that_is_closed_cuts_its_transfers(ranged_stub: Stub) -> None:
    require_native()
    ranged_stub.answer = lambda request: ranged(request, stall_s=20.0)
    store = bare_store(ranged_stub, stall_timeout_s=60.0, engine="native")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(store.get, "k", 0, 10)
        while not ranged_stub.requests:
            SystemClock().sleep(0.01)
        store.close()
        with pytest.raises(StorageError):
            reading.result()
        ranged_stub.answer = ranged
        assert pool.submit(store.get, "k", 0, 10).result().data == DATA[:10]
    store.close()


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("server", ["ranged_stub", "ranged_tls"])
def test_a_forked_child_reads_by_connections_of_its_own(
    request: pytest.FixtureRequest, server: str
) -> None:
    ranged_stub: Stub = request.getfixturevalue(server)
    store = bare_store(ranged_stub)
    assert store.get("k", 0, 10).data == DATA[:10]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(store.get, "k", 0, 70_000).result().data == DATA[:70_000]
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)

        def work() -> None:
            store.close()  # its parent's connections are not the child's to end
            theirs.send([store.get("k", at, at + 70_000).data for at in (1, 2)])

        child = context.Process(target=work, daemon=True)
        child.start()
        try:
            assert ours.poll(60), "the child hangs"
            assert ours.recv() == [DATA[at : at + 70_000] for at in (1, 2)]
        finally:
            child.kill()
            child.join()
        assert pool.submit(store.get, "k", 5, 70_000).result().data == DATA[5:70_000]
    assert store.get("k", 3, 10).data == DATA[3:10]
    store.close()
