"""Both engines of ranged reads mean the same, and which one reads is chosen and told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dstream.clock import SystemClock
from dstream.errors import InvalidInputError, ShortReadError, StorageError
from dstream.measure import Meter
from dstream.store import libcurl
from dstream.store.opening import StoreOptions, open_store
from dstream.store.options import engines_used
from dstream.store.retry import RetryPolicy
from dstream.store.s3 import S3Store
from dstream.store.s3_connection import FRESH_S, Endpoint
from dstream.store.s3_curl import CurlConnection, final_head
from dstream.store.s3_engine import connector
from dstream.store.s3_http import KeptConnection
from s3_services import require_native
from s3_stub import DATA, Reply, Request, Stub, bare_store, ranged

PLAIN = Endpoint("http://127.0.0.1:9", None, None, 1.0)


@pytest.mark.parametrize(
    ("engine", "ca_bundle", "loaded", "chosen", "fallbacks"),
    [
        ("auto", None, "not asked", KeptConnection, {}),
        ("auto", "ca", "no_pycurl", KeptConnection, {}),
        ("auto", "ca", "unusable", KeptConnection, {"engine:unusable": 1}),
        ("auto", "ca", None, CurlConnection, {}),
        ("python", "ca", None, KeptConnection, {}),
        ("native", None, None, CurlConnection, {}),
    ],
)
def test_which_engine_reads(
    monkeypatch: pytest.MonkeyPatch,
    localhost_certificate: Path,
    engine: str,
    ca_bundle: str | None,
    loaded: str | None,
    chosen: type,
    fallbacks: dict[str, int],
) -> None:
    if loaded is None:
        require_native()
    else:
        monkeypatch.setattr(libcurl, "load", lambda: loaded)
    endpoint = dataclasses.replace(PLAIN, ca_bundle=ca_bundle and str(localhost_certificate))
    meter = Meter()
    assert type(connector(engine, endpoint, meter)()) is chosen
    counts = meter.snapshot()
    used = {"native": 1} if chosen is CurlConnection else {"python": 1}
    lacking = {"lacks_fast": 1} if loaded == "no_pycurl" else {}
    assert engines_used(counts.sums) == used | lacking
    assert counts.event("fallback") == fallbacks


def test_a_url_with_a_user_is_left_to_python(localhost_certificate: Path) -> None:
    require_native()
    meter = Meter()
    endpoint = Endpoint("https://me:secret@127.0.0.1", None, str(localhost_certificate), 1.0)
    assert type(connector("auto", endpoint, meter)()) is KeptConnection
    assert meter.snapshot().event("fallback") == {"engine:user_in_url": 1}


def test_an_engine_that_is_asked_for_and_not_there(
    monkeypatch: pytest.MonkeyPatch, ranged_stub: Stub
) -> None:
    monkeypatch.setattr(libcurl, "load", lambda: "no_pycurl")
    monkeypatch.setenv("DSTREAM_S3_ENGINE", "native")
    store = open_store("s3://bucket", options=StoreOptions(endpoint_url=ranged_stub.endpoint_url))
    with pytest.raises(InvalidInputError, match=r"no_pycurl.*pip install 'dstream\[fast\]'"):
        store.get("k", 0, 1)
    with pytest.raises(InvalidInputError, match="auto, python, native"):
        StoreOptions(engine="rust")


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("size", [1, 1000, 65535, 65536, 200_000])
def test_ranges_over_tls(ranged_tls: Stub, each_thread: Any, size: int) -> None:
    store = bare_store(ranged_tls)
    assert each_thread(lambda: [store.get("k", at, at + size).data for at in (0, 7, 9)]) == [
        DATA[at : at + size] for at in (0, 7, 9)
    ]
    store.close()


@pytest.mark.usefixtures("each_engine")
def test_a_server_nobody_vouches_for(ranged_tls: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE")
    store = bare_store(ranged_tls)
    with pytest.raises(StorageError) as caught:
        store.get("k", 0, 10)
    assert caught.value.facts["code"] == "SSLError"
    assert ranged_tls.requests == []
    store.close()


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("size", [1000, 100_000])
@pytest.mark.parametrize("server", ["ranged_stub", "ranged_tls"])
def test_an_answer_that_ends_early(
    request: pytest.FixtureRequest, each_thread: Any, server: str, size: int
) -> None:
    ranged_stub: Stub = request.getfixturevalue(server)
    ranged_stub.answer = lambda asked: ranged(asked, cut_at=size - 1)
    store = bare_store(ranged_stub)
    with pytest.raises(ShortReadError) as caught:
        each_thread(lambda: store.get("k", 0, size))
    assert (caught.value.received_bytes, caught.value.expected_bytes) == (size - 1, size)
    store.close()


@pytest.mark.usefixtures("each_engine")
def test_a_request_on_a_lost_connection_is_not_sent_again_unseen(
    ranged_stub: Stub, each_thread: Any
) -> None:
    replies = [ranged, lambda request: Reply(reset=True), ranged]
    ranged_stub.answer = lambda request: replies.pop(0)(request)
    store = bare_store(ranged_stub)

    def read() -> None:
        assert store.get("k", 0, 10).data == DATA[:10]
        with pytest.raises(StorageError) as caught:
            store.get("k", 0, 10)
        assert caught.value.facts["code"] in ("ConnectionClosedError", "ConnectionResetError")
        assert len(ranged_stub.requests) == 2
        assert store.get("k", 0, 10).data == DATA[:10]

    each_thread(read)
    assert len(ranged_stub.requests) == 3
    store.close()


@pytest.mark.usefixtures("each_engine")
def test_the_whole_object_instead_of_a_range_is_refused_unread(
    ranged_stub: Stub, each_thread: Any
) -> None:
    body = bytes(40_000_000)
    ranged_stub.answer = lambda request: Reply(200, body, {"ETag": '"e"'})
    store = bare_store(ranged_stub)
    with pytest.raises(StorageError, match="ignores the Range header"):
        each_thread(lambda: store.get("k", 0, 100_000))
    store.close()


@pytest.mark.usefixtures("each_engine")
def test_bodies_come_as_they_are(ranged_stub: Stub, each_thread: Any) -> None:
    def answer(request: Request) -> Reply:
        reply = ranged(request)
        return dataclasses.replace(reply, headers={**reply.headers, "Content-Encoding": "gzip"})

    ranged_stub.answer = answer
    store = bare_store(ranged_stub)
    assert each_thread(lambda: store.get("k", 0, 1000).data) == DATA[:1000]
    assert ranged_stub.requests[0].headers["accept-encoding"] == "identity"
    store.close()


@pytest.mark.usefixtures("each_engine")
def test_headers_cannot_be_smuggled_in(ranged_stub: Stub) -> None:
    store = bare_store(ranged_stub)
    with pytest.raises(InvalidInputError, match="line breaks") as caught:
        store.get("k", 0, 10, expect_etag="e\r\nsecret: 1")
    assert "secret" not in str(caught.value)
    assert ranged_stub.requests == []
    store.close()


@pytest.mark.usefixtures("each_engine")
def test_a_plain_proxy_is_asked_with_its_credentials(
    ranged_stub: Stub, monkeypatch: pytest.MonkeyPatch, each_thread: Any
) -> None:
    monkeypatch.setenv("http_proxy", ranged_stub.endpoint_url.replace("//", "//me:p%40ss@"))
    monkeypatch.setenv("no_proxy", "")
    store = S3Store("bucket", "", StoreOptions(endpoint_url="http://s3.example:81"))
    assert each_thread(lambda: store.get("a b", 0, 10).data) == DATA[:10]
    (asked,) = ranged_stub.requests
    assert asked.path == "http://s3.example:81/bucket/a%20b"
    assert asked.headers["host"] == "s3.example:81"
    assert asked.headers["proxy-authorization"] == "Basic bWU6cEBzcw=="
    store.close()


@pytest.mark.usefixtures("each_engine")
def test_a_proxy_that_allows_no_tunnel(
    ranged_tls: Stub, ranged_stub: Stub, monkeypatch: Any, each_thread: Any
) -> None:
    monkeypatch.setenv("https_proxy", ranged_stub.endpoint_url.replace("//", "//me:passw0rd@"))
    monkeypatch.setenv("no_proxy", "")
    store = bare_store(ranged_tls)
    with pytest.raises(StorageError) as caught:
        each_thread(lambda: store.get("k", 0, 10))
    assert caught.value.facts["code"] == "EndpointConnectionError"
    assert "passw0rd" not in f"{caught.value} {caught.value.facts}"
    assert ranged_tls.requests == []
    store.close()


@pytest.mark.usefixtures("each_engine")
def test_an_idle_connection_that_the_server_closed_is_made_anew(
    ranged_stub: Stub, each_thread: Any
) -> None:
    ranged_stub.answer = lambda request: ranged(request, cut_at=10)  # all of it, then closes
    store = bare_store(ranged_stub)

    def read() -> None:
        for _ in range(2):
            assert store.get("k", 0, 10).data == DATA[:10]
            SystemClock().sleep(FRESH_S + 0.05)

    each_thread(read)
    assert len(ranged_stub.requests) == 2
    store.close()


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("size", [1000, 100_000])
def test_a_byte_more_than_was_asked_for_is_refused(
    ranged_stub: Stub, each_thread: Any, size: int
) -> None:
    def answer(request: Request) -> Reply:
        reply = ranged(request)
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (size + 1, reply.body + b"x")
        framing = {"Transfer-Encoding": "chunked", "Content-Length": str(size)}
        return dataclasses.replace(reply, body=body, headers={**reply.headers, **framing})

    ranged_stub.answer = answer
    store = bare_store(ranged_stub)
    with pytest.raises(StorageError):
        each_thread(lambda: store.get("k", 0, size))
    store.close()


@pytest.mark.usefixtures("each_engine")
def test_retry_after_reaches_the_policy(ranged_stub: Stub, each_thread: Any) -> None:
    replies = [Reply(503, b"x" * 70_000, {"Retry-After": "0"}), None]

    def answer(request: Request) -> Reply:
        return replies.pop(0) or ranged(request)

    ranged_stub.answer = answer
    meter = Meter()
    options = StoreOptions(
        endpoint_url=ranged_stub.endpoint_url, retry=RetryPolicy(attempts=2, longest_wait_s=9.0)
    )
    store = open_store("s3://bucket", options=options, meter=meter)
    assert each_thread(lambda: store.get("k", 0, 100).data) == DATA[:100]
    assert meter.snapshot().event("retry") == {"throttled": 1}
    store.close()


@pytest.mark.parametrize(
    ("received", "head"),
    [
        (b"", None),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n", None),
        (b"HTTP/1.1 100 Continue\r\n\r\n", None),
        (b"HTTP/1.1 206 P\r\n\r\n", b"HTTP/1.1 206 P\r\n\r\n"),
        (b"HTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 404 N\r\n\r\n", b"HTTP/1.1 404 N\r\n\r\n"),
        (b"HTTP/1.0 200 OK\r\nA: b\r\n\r\nTrailer: x\r\n\r\n", b"HTTP/1.0 200 OK\r\nA: b\r\n\r\n"),
    ],
)
def test_the_head_among_others(received: bytes, head: bytes | None) -> None:
    assert final_head(received) == head
