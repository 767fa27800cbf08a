"""What the S3 store makes of a server's answers, right and wrong, down to the counters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dstream.clock import FakeClock
from dstream.errors import (
    AlreadyExistsError,
    DstreamError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    ShortReadError,
    SourceChangedError,
    StorageError,
    ThrottledError,
)
from dstream.measure import Meter, Purpose
from dstream.store.opening import StoreOptions, open_store
from dstream.store.options import parse_arguments
from dstream.store.retry import is_retryable
from dstream.store.s3 import S3Store
from s3_stub import Reply, Request, Stub, s3_error, stub_server

pytestmark = pytest.mark.usefixtures("each_engine")

ETAG = "0123456789abcdef"
DATA = bytes(range(100))


@pytest.fixture
def stub() -> Iterator[Stub]:
    with stub_server() as stub:
        yield stub


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def store(stub: Stub, meter: Meter) -> Iterator[S3Store]:
    """The bare store, without retries."""
    options = StoreOptions(endpoint_url=stub.endpoint_url, read_timeout_s=20)
    store = S3Store("bucket", "pre", options, meter=meter)
    yield store
    store.close()


def ranged(start: int, stop: int, **changed: str) -> Reply:
    headers = {"ETag": f'"{ETAG}"', "Content-Range": f"bytes {start}-{stop - 1}/{len(DATA)}"}
    return Reply(206, DATA[start:stop], {**headers, **changed})


def outcomes(meter: Meter) -> dict[tuple[str, str], int]:
    requests = meter.snapshot().requests
    return {(key.verb, key.outcome): total.count for key, total in requests.items()}


def test_a_ranged_read_is_one_request_with_range_and_if_match(stub: Stub, store: S3Store) -> None:
    stub.script(ranged(10, 20))
    blob = store.get("a b", 10, 20, expect_etag=ETAG, version="v/1")
    assert blob.data == DATA[10:20]
    assert (blob.info.etag, blob.info.size_bytes) == (ETAG, 100)
    (request,) = stub.requests
    assert (request.method, request.path) == ("GET", "/bucket/pre/a%20b?versionId=v%2F1")
    assert request.headers["range"] == "bytes=10-19"
    assert request.headers["if-match"] == f'"{ETAG}"'
    assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=dstream/")


def test_a_truncated_body_is_a_short_read_with_its_bytes(
    stub: Stub, store: S3Store, meter: Meter
) -> None:
    full = ranged(10, 60)
    stub.script(Reply(206, full.body, full.headers, cut_at=33), full)
    with pytest.raises(ShortReadError) as caught:
        store.get("k", 10, 60)
    assert caught.value.received_bytes == 33
    assert is_retryable(caught.value)
    assert store.get("k", 10, 60).data == DATA[10:60]
    totals = meter.snapshot().total("get", outcome="short-read")
    assert (totals.count, totals.bytes_requested, totals.bytes_received) == (1, 50, 33)


@pytest.mark.parametrize(
    "reply",
    [
        ranged(11, 20),
        ranged(10, 21),
        ranged(10, 20, **{"Content-Range": "bytes 10-19/*"}),
        ranged(10, 20, **{"Content-Range": "nonsense"}),
        Reply(206, DATA[10:20], {"ETag": ETAG}),
        Reply(206, DATA[10:19], {"ETag": ETAG, "Content-Range": "bytes 10-19/100"}),
        Reply(200, DATA, {"ETag": ETAG}),
        Reply(200, DATA[10:20], {"ETag": ETAG}),
        Reply(204, b"", {"ETag": ETAG}),
    ],
    ids=range(9),
)
def test_an_answer_that_is_not_the_range_asked_for_is_refused(
    stub: Stub, store: S3Store, reply: Reply
) -> None:
    stub.script(reply)
    with pytest.raises(StorageError):
        store.get("k", 10, 20)


def test_another_etag_in_the_answer_is_a_changed_source(
    stub: Stub, store: S3Store, meter: Meter
) -> None:
    stub.script(ranged(10, 20))
    with pytest.raises(SourceChangedError) as caught:
        store.get("k", 10, 20, expect_etag="older")
    assert (caught.value.etag, caught.value.expected_etag) == (ETAG, "older")
    assert outcomes(meter) == {("get", "source-changed"): 1}


def test_a_right_412_is_confirmed_and_a_wrong_one_worked_around(
    stub: Stub, store: S3Store, meter: Meter
) -> None:
    def answer(request: Request) -> Reply:
        if request.method == "HEAD":
            return Reply(200, DATA, {"ETag": f'"{ETAG}"'})
        return s3_error(412, "PreconditionFailed") if "if-match" in request.headers else good

    good = ranged(10, 20)
    stub.answer = answer
    with pytest.raises(SourceChangedError):
        store.get("k", 10, 20, expect_etag="older")
    assert meter.snapshot().events == {}
    assert store.get("k", 10, 20, expect_etag=ETAG).data == DATA[10:20]
    assert store.get("k", 10, 20, expect_etag=ETAG).data == DATA[10:20]
    assert meter.snapshot().event("fallback") == {"if-match-on-get": 1}
    assert [request.method for request in stub.requests] == "GET HEAD GET HEAD GET GET".split()


@pytest.mark.parametrize(
    ("reply", "kind", "retryable"),
    [
        (s3_error(503, "SlowDown", Retry_After="7"), ThrottledError, True),
        (s3_error(429, "TooManyRequests"), ThrottledError, True),
        (s3_error(500, "InternalError"), StorageError, True),
        (s3_error(502, "BadGateway"), StorageError, True),
        (Reply(504), StorageError, True),
        (Reply(reset=True), StorageError, True),
        (s3_error(400, "RequestTimeout"), StorageError, True),
        (s3_error(400, "InvalidRequest"), StorageError, False),
        (s3_error(501, "NotImplemented"), StorageError, False),
        (s3_error(404, "NoSuchKey"), NotFoundError, False),
        (s3_error(404, "NoSuchBucket"), NotFoundError, False),
        (s3_error(403, "AccessDenied"), PermissionDeniedError, False),
        (s3_error(403, "SignatureDoesNotMatch"), PermissionDeniedError, False),
        (s3_error(403, "RequestTimeTooSkewed"), PermissionDeniedError, False),
        (s3_error(400, "ExpiredToken"), PermissionDeniedError, False),
        (s3_error(301, "PermanentRedirect"), StorageError, False),
        (Reply(400, b"\xff not xml <Code>", {}), StorageError, False),
    ],
    ids=range(17),
)
@pytest.mark.parametrize("operation", ["get", "put"])
def test_errors_are_translated(
    stub: Stub,
    store: S3Store,
    operation: str,
    reply: Reply,
    kind: type[DstreamError],
    retryable: bool,
) -> None:
    stub.script(reply)
    with pytest.raises(kind) as caught:
        store.get("k", 0, 10) if operation == "get" else store.put("k", b"data")
    assert is_retryable(caught.value) is retryable
    assert caught.value.facts["key"] == "k"
    if reply.status == 503:
        assert caught.value.retry_after_s == 7.0
    if "AccessDenied" in str(caught.value):
        assert caught.value.permission == ("s3:GetObject" if operation == "get" else "s3:PutObject")
        assert "s3://bucket/pre/k" in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "kind", "outcome"),
    [
        (s3_error(412, "PreconditionFailed"), AlreadyExistsError, "already-exists"),
        (s3_error(409, "ConditionalRequestConflict"), StorageError, "conflict"),
        (s3_error(409, "OperationAborted"), StorageError, "conflict"),
        (s3_error(500, "InternalError"), OutcomeUnknownError, "unknown"),
        (s3_error(503, "SlowDown"), OutcomeUnknownError, "unknown"),
        (Reply(reset=True), OutcomeUnknownError, "unknown"),
        (s3_error(429, "TooManyRequests"), ThrottledError, "throttled"),
        (s3_error(403, "AccessDenied"), PermissionDeniedError, "denied"),
        (s3_error(404, "NoSuchBucket"), NotFoundError, "not-found"),
        (s3_error(501, "NotImplemented"), StorageError, "error"),
    ],
    ids=range(10),
)
def test_outcomes_of_put_if_absent(
    stub: Stub,
    meter: Meter,
    reply: Reply,
    kind: type[DstreamError],
    outcome: str,
) -> None:
    """One request whatever happens, also through the retrying store."""
    options = StoreOptions(endpoint_url=stub.endpoint_url)
    store = open_store("s3://bucket", options=options, meter=meter, clock=FakeClock())
    stub.script(reply)
    with pytest.raises(kind) as caught:
        store.put_if_absent("k", b"data")
    assert type(caught.value) is kind
    (request,) = stub.requests
    assert request.headers["if-none-match"] == "*"
    assert "expect" not in request.headers
    assert outcomes(meter) == {("put-if-absent", outcome): 1}
    assert (outcome == "conflict") is (caught.value.facts["code"] == "ConditionalRequestConflict")
    store.close()


def test_put_if_absent_that_could_not_connect_is_no_unknown_outcome(stub: Stub) -> None:
    store = S3Store("bucket", "", StoreOptions(endpoint_url="http://127.0.0.1:9"))
    with pytest.raises(StorageError, match="check AWS_ENDPOINT_URL"):
        store.put_if_absent("k", b"")
    store.close()


def test_an_endpoints_password_is_not_shown() -> None:
    store = S3Store("bucket", "", StoreOptions(endpoint_url="http://me:passw0rd@127.0.0.1:9"))
    with pytest.raises(StorageError, match="http://127") as caught:
        store.put_if_absent("k", b"")
    assert "passw0rd" not in f"{caught.value} {caught.value.facts}"
    store.close()


def test_retry_after_is_waited_and_everything_counted(stub: Stub, meter: Meter) -> None:
    clock = FakeClock()
    store = open_store(
        "s3://bucket",
        options=StoreOptions(endpoint_url=stub.endpoint_url),
        meter=meter,
        clock=clock,
        rng=np.random.default_rng(1),
    )
    full = ranged(0, 50)
    cut = Reply(206, full.body, full.headers, cut_at=20)
    stub.script(s3_error(503, "SlowDown", Retry_After="7"), cut, Reply(reset=True), full)
    assert store.get("k", 0, 50, purpose=Purpose.DATA).data == DATA[:50]
    assert len(stub.requests) == 4
    assert outcomes(meter) == {
        ("get", "throttled"): 1,
        ("get", "short-read"): 1,
        ("get", "reset"): 1,
        ("get", "ok"): 1,
    }
    assert meter.snapshot().event("retry") == {"throttled": 1, "short-read": 1, "reset": 1}
    assert meter.snapshot().event("throttle") == {"SlowDown": 1}
    assert 7.0 <= clock.slept_s[0] < 7.2
    assert len(clock.slept_s) == 3
    assert meter.snapshot().total("get", Purpose.DATA).bytes_received == 70
    store.close()


def test_a_lost_page_of_a_listing_is_asked_for_again(stub: Stub, meter: Meter) -> None:
    def page(keys: list[str], token: str) -> Reply:
        entries = "".join(
            f"<Contents><Key>{key}</Key><Size>1</Size><ETag>x</ETag>"
            "<LastModified>2025-01-01T00:00:00Z</LastModified></Contents>"
            for key in keys
        )
        more = (
            f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
        )
        text = f"<ListBucketResult>{more if token else ''}{entries}</ListBucketResult>"
        return Reply(200, text.encode(), {"Content-Type": "application/xml"})

    stub.script(page(["a", "dir/", "b"], "t"), s3_error(503, "SlowDown"), page(["c", "d//e"], ""))
    options = StoreOptions(endpoint_url=stub.endpoint_url)
    skipped: list[tuple[str, str]] = []
    store = open_store(
        "s3://bucket",
        options=options,
        meter=meter,
        clock=FakeClock(),
        on_skip=lambda name, reason: skipped.append((name, reason)),
    )
    assert [info.key for info in store.list()] == ["a", "b", "c"]
    assert outcomes(meter) == {("list", "ok"): 2, ("list", "throttled"): 1}
    assert "continuation-token=t" in stub.requests[-1].path
    assert skipped == [("dir/", "folder-marker"), ("d//e", "bad-name")]
    assert meter.snapshot().event("list-skip") == {"folder-marker": 1, "bad-name": 1}
    store.close()


@pytest.mark.parametrize("code", ["MissingContentMD5", "NotImplemented"])
def test_deletes_go_one_by_one_where_there_is_no_bulk_delete(
    stub: Stub, store: S3Store, meter: Meter, code: str
) -> None:
    def answer(request: Request) -> Reply:
        if request.method == "POST":
            assert "content-md5" in request.headers
            return s3_error(400 if code.startswith("M") else 501, code)
        return s3_error(403, "AccessDenied") if "locked" in request.path else Reply(204)

    stub.answer = answer
    failed = store.delete_many([("a", None), ("locked", None), ("b", "v1")])
    assert list(failed) == ["locked"]
    assert "s3:DeleteObject" in failed["locked"]
    assert store.delete_many([("c", None)]) == {}
    assert [request.method for request in stub.requests] == ["POST"] + ["DELETE"] * 4
    assert meter.snapshot().event("fallback") == {f"bulk-delete:{code}": 1}


def test_request_arguments_go_to_the_requests_that_know_them(stub: Stub) -> None:
    options = StoreOptions(
        endpoint_url=stub.endpoint_url,
        request_args={
            "RequestPayer": "requester",
            "ServerSideEncryption": "aws:kms",
            "SSECustomerKey": "k" * 32,
            "SSECustomerAlgorithm": "AES256",
        },
    )
    assert "kkk" not in repr(options)
    store = S3Store("bucket", "", options)
    stub.script(ranged(0, 10))
    store.get("k", 0, 10)
    stub.script(Reply(200, b"", {"ETag": "x"}))
    store.put("k", b"")
    read, written = stub.requests
    for request in (read, written):
        assert request.headers["x-amz-request-payer"] == "requester"
        assert request.headers["x-amz-server-side-encryption-customer-algorithm"] == "AES256"
        assert request.headers["x-amz-server-side-encryption-customer-key-md5"]
    assert "x-amz-server-side-encryption" not in read.headers
    assert written.headers["x-amz-server-side-encryption"] == "aws:kms"
    store.close()


@pytest.mark.parametrize("operation", ["get", "put-if-absent", "list"])
def test_the_region_that_a_redirect_names_is_followed(
    stub: Stub, meter: Meter, operation: str
) -> None:
    def answer(request: Request) -> Reply:
        if "/eu-west-1/s3/" not in request.headers["authorization"]:
            return s3_error(301, "PermanentRedirect", x_amz_bucket_region="eu-west-1")
        if request.method == "PUT":
            return Reply(200, b"", {"ETag": "x"})
        return ranged(0, 10) if "range" in request.headers else Reply(200, b"<ListBucketResult/>")

    stub.answer = answer
    store = S3Store("bucket", "", StoreOptions(endpoint_url=stub.endpoint_url), meter=meter)
    if operation == "get":
        assert store.get("k", 0, 10).data == DATA[:10]
    elif operation == "list":
        assert list(store.list()) == []
    else:
        store.put_if_absent("k", b"")
    assert len(stub.requests) == 2
    assert outcomes(meter) == {(operation, "error"): 1, (operation, "ok"): 1}
    assert meter.snapshot().event("redirect") == {"bucket-region": 1}
    store.close()


def test_a_forbidden_question_for_versions_means_none(stub: Stub, meter: Meter) -> None:
    store = S3Store("bucket", "", StoreOptions(endpoint_url=stub.endpoint_url), meter=meter)
    stub.script(s3_error(503, "SlowDown"), s3_error(403, "AccessDenied"))
    with pytest.raises(ThrottledError):
        _ = store.capabilities
    assert store.capabilities.versioned is False
    assert store.capabilities.versioned is False
    assert len(stub.requests) == 2
    assert meter.snapshot().event("fallback") == {"versioning-denied": 1}
    store.close()


def test_unsigned_requests(stub: Stub) -> None:
    options = StoreOptions(endpoint_url=stub.endpoint_url, no_sign_request=True)
    store = S3Store("bucket", "", options)
    stub.script(ranged(0, 10))
    assert store.get("k", 0, 10).data == DATA[:10]
    assert "authorization" not in stub.requests[0].headers
    store.close()


def test_without_credentials_the_error_says_how_to_give_them(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    store = S3Store("bucket", "", StoreOptions(endpoint_url=stub.endpoint_url))
    for call in (lambda: store.get("k", 0, 1), lambda: store.put("k", b"")):
        with pytest.raises(PermissionDeniedError, match="AWS_PROFILE"):
            call()
    assert stub.requests == []
    store.close()


@pytest.mark.parametrize(
    "options",
    [
        {"request_args": {"Nonsense": "1"}},
        {"region": "no region"},
        {"endpoint_url": "not a url"},
        {"profile": "no-such-profile"},
    ],
    ids=lambda value: next(iter(value)),
)
def test_unusable_settings_are_refused(options: dict[str, object]) -> None:
    store = S3Store("bucket", "", StoreOptions(**options))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        store.get("k", 0, 1)
    store.close()


def test_arguments_that_the_store_sets_itself_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="IfNoneMatch"):
        StoreOptions(request_args={"IfNoneMatch": "*"})
    with pytest.raises(InvalidInputError, match="part 2"):
        parse_arguments("RequestPayer=requester,oops")


def test_arguments_come_from_the_environment(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSTREAM_S3_ARGS", "RequestPayer=requester")
    monkeypatch.setenv("AWS_ENDPOINT_URL", stub.endpoint_url)
    stub.script(ranged(0, 10))
    store = open_store("s3://bucket/some/prefix/")
    store.get("k", 0, 10)
    assert stub.requests[0].path == "/bucket/some/prefix/k"
    assert stub.requests[0].headers["x-amz-request-payer"] == "requester"
    store.close()
