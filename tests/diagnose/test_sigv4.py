"""Signatures both ways, against botocore's own signers."""

from __future__ import annotations

import dataclasses
import io
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from dstream.diagnose.bodies import Body, resigned
from dstream.diagnose.sigv4 import (
    UNSIGNED_PAYLOAD,
    Key,
    Message,
    Signature,
    SignatureRefusedError,
    check,
    chunk_signature,
    sign,
    trailer_signature,
    without_signature,
)
from dstream.errors import InvalidInputError

KEY = Key("AKIDEXAMPLE", "secret/with+signs")
OTHER = Key("OTHERKEY", "another", "a-session-token")
URLS = [
    "http://127.0.0.1:9000/bucket/key",
    "http://127.0.0.1:9000/bucket/a%20b/%C3%BC%2B~.mp4?versionId=a%2Fb%3D&x-id=GetObject",
    "http://127.0.0.1:9000/bucket?list-type=2&prefix=a%2F&delimiter=%2F&start-after=",
    "http://127.0.0.1:9000/bucket/key?uploads",
    "http://127.0.0.1:9000/bucket//key/../x",
]


def signed_by_botocore(url: str, key: Key = KEY, method: str = "GET") -> Message:
    request = AWSRequest(method, url, headers={"Range": "bytes=0-9", "x-amz-meta-a": "b   c"})
    request.context["client_config"] = None
    S3SigV4Auth(Credentials(key.access, key.secret, key.token), "s3", "eu-west-1").add_auth(request)
    return message_of(request, method)


def message_of(request: AWSRequest, method: str) -> Message:
    parts = urlsplit(request.url)
    headers = [(name, str(value)) for name, value in request.headers.items()]
    return Message(method, parts.path, parts.query, [*headers, ("Host", parts.netloc)])


@pytest.mark.parametrize("url", URLS)
def test_what_botocore_signed_is_accepted(url: str) -> None:
    signature = check(signed_by_botocore(url), KEY)
    assert signature.region == "eu-west-1"


@pytest.mark.parametrize("url", URLS)
def test_a_presigned_url_is_accepted(url: str) -> None:
    request = AWSRequest("GET", url)
    credentials = Credentials(KEY.access, KEY.secret)
    S3SigV4QueryAuth(credentials, "s3", "us-east-1", expires=60).add_auth(request)
    message = message_of(request, "GET")
    check(message, KEY)
    assert "X-Amz" not in without_signature(message.query)


@pytest.mark.parametrize("url", URLS)
def test_what_is_signed_here_botocore_would_sign_so(url: str) -> None:
    theirs = signed_by_botocore(url, OTHER)
    time = theirs.header("x-amz-date")
    assert time is not None
    plain = [
        (name, value)
        for name, value in theirs.headers
        if name.lower() not in ("authorization", "x-amz-date", "x-amz-security-token")
    ]
    bare = Message(theirs.method, theirs.path, theirs.query, plain)
    signature, added = sign(bare, OTHER, time, "eu-west-1")
    assert added["authorization"] == theirs.header("authorization")
    assert added["x-amz-security-token"] == OTHER.token
    assert (
        check(Message("GET", bare.path, bare.query, [*plain, *added.items()]), OTHER) == signature
    )


GOOD = signed_by_botocore(URLS[0])
CHANGED = [(name, value.replace("0-9", "0-8")) for name, value in GOOD.headers]
REFUSED = {
    "method": (dataclasses.replace(GOOD, method="PUT"), "SignatureDoesNotMatch"),
    "path": (dataclasses.replace(GOOD, path="/bucket/other"), "SignatureDoesNotMatch"),
    "query": (dataclasses.replace(GOOD, query="a=b"), "SignatureDoesNotMatch"),
    "header": (dataclasses.replace(GOOD, headers=CHANGED), "SignatureDoesNotMatch"),
    "unsigned": (dataclasses.replace(GOOD, headers=[("Host", "h")]), "AccessDenied"),
    "version 2": (
        dataclasses.replace(GOOD, headers=[("Authorization", "AWS x:y")]),
        "AuthorizationHeaderMalformed",
    ),
    "other key": (signed_by_botocore(URLS[0], OTHER), "InvalidAccessKeyId"),
    "other secret": (
        signed_by_botocore(URLS[0], Key(KEY.access, "guessed")),
        "SignatureDoesNotMatch",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_anything_else_is_refused(name: str) -> None:
    message, code = REFUSED[name]
    with pytest.raises(SignatureRefusedError) as caught:
        check(message, KEY)
    assert caught.value.facts["code"] == code
    assert KEY.secret not in str(caught.value) + repr(KEY)


def chunked_body(chunks: list[bytes], seed: Signature, key: Key, trailer: bytes = b"") -> bytes:
    """As the S3 documentation's example of a chunked upload, with another key."""
    out, before = b"", seed
    for data in [*chunks, b""]:
        before = chunk_signature(before, key.secret, data)
        out += b"%x;chunk-signature=%s\r\n%s" % (len(data), before.value.encode(), data)
        out += b"\r\n" if data else b""
    if trailer:
        before = trailer_signature(before, key.secret, trailer + b"\n")
        out += trailer + b"\r\nx-amz-trailer-signature:" + before.value.encode() + b"\r\n"
    return out + b"\r\n"


SEED = Signature("a" * 64, "20261130T120000Z", "20261130/us-east-1/s3/aws4_request")
OUR_SEED = Signature("b" * 64, "20261130T120001Z", "20261130/eu-west-1/s3/aws4_request")


@pytest.mark.parametrize("trailer", [b"", b"x-amz-checksum-crc32:AAAAAA=="])
@pytest.mark.parametrize("chunks", [[], [b"x" * 70_000, b"y" * 10], [b"z" * 300_000] * 3])
def test_signed_chunks_are_checked_and_signed_anew(chunks: list[bytes], trailer: bytes) -> None:
    sent = chunked_body(chunks, SEED, KEY, trailer)
    wanted = chunked_body(chunks, OUR_SEED, OTHER, trailer)
    body = Body(io.BytesIO(sent), len(sent))
    assert b"".join(resigned(body, (SEED, KEY), (OUR_SEED, OTHER))) == wanted
    assert len(sent) == len(wanted)


def test_signed_chunks_in_http_chunks_are_read_to_their_end() -> None:
    sent = chunked_body([b"x" * 1000], SEED, KEY)
    stream = io.BytesIO(b"%x\r\n%s\r\n0\r\n\r\nGET /" % (len(sent), sent))
    body = Body(stream, None)
    b"".join(resigned(body, (SEED, KEY), (OUR_SEED, OTHER)))
    assert (body.is_ended, stream.read()) == (True, b"GET /")


def test_documented_chunk_signatures() -> None:
    """The example of AWS's "Signature Calculations ... (Chunked Upload)"."""
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    seed = Signature(
        "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
        "20130524T000000Z",
        "20130524/us-east-1/s3/aws4_request",
    )
    first = chunk_signature(seed, secret, b"a" * 65536)
    assert first.value == "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"
    second = chunk_signature(first, secret, b"a" * 1024)
    assert second.value == "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"
    last = chunk_signature(second, secret, b"")
    assert last.value == "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"


GOOD_CHUNKS = chunked_body([b"x" * 100, b"y" * 100], SEED, KEY)
SPOILED: dict[str, tuple[bytes, type[Exception]]] = {
    "other data": (GOOD_CHUNKS.replace(b"yyyy", b"yyyn", 1), SignatureRefusedError),
    "cut off": (GOOD_CHUNKS[:-40], InvalidInputError),
    "no size": (b"zz" + GOOD_CHUNKS, InvalidInputError),
    "too large": (b"fffffffff;chunk-signature=0\r\n" + GOOD_CHUNKS, InvalidInputError),
    "going on": (GOOD_CHUNKS + b"GET /", InvalidInputError),
    "negative": (b"-1;chunk-signature=0\r\n" + GOOD_CHUNKS, InvalidInputError),
}


@pytest.mark.parametrize("name", SPOILED)
def test_spoiled_chunks_are_refused(name: str) -> None:
    sent, error = SPOILED[name]
    with pytest.raises(error):
        b"".join(resigned(Body(io.BytesIO(sent), len(sent)), (SEED, KEY), (OUR_SEED, OTHER)))


def test_http_chunks_are_read_and_bounded() -> None:
    framed = b"5\r\nhello\r\n1;ext=1\r\n!\r\n0\r\nx-trailer: 1\r\n\r\nGET / HTTP/1.1"
    stream = io.BytesIO(framed)
    body = Body(stream, None)
    assert b"".join(body.pieces()) == b"hello!"
    assert (body.received_bytes, stream.read(3)) == (6, b"GET")
    for bad in (b"5\nhello", b"xyz\r\n", b"+5\r\nhello\r\n", b"1" * 20_000):
        with pytest.raises(InvalidInputError):
            b"".join(Body(io.BytesIO(bad), None).pieces())
    with pytest.raises(ConnectionError):
        b"".join(Body(io.BytesIO(b"123"), 10).pieces())


def test_the_payload_of_a_presigned_url_is_unsigned() -> None:
    bare = Message("GET", "/b/k", "", [("Host", "h"), ("x-amz-content-sha256", UNSIGNED_PAYLOAD)])
    _, added = sign(bare, KEY, "20261130T120000Z", "us-east-1")
    assert "x-amz-security-token" not in added
    assert "host;x-amz-content-sha256;x-amz-date" in added["authorization"]


def test_an_encoding_that_nobody_signs_may_travel() -> None:
    """object_store sends ``uploadId=2%7Ex`` and signs ``uploadId=2~x``."""
    signed = signed_by_botocore("http://127.0.0.1:9000/bucket/a~b?uploadId=2~x")
    check(dataclasses.replace(signed, path="/bucket/a%7Eb", query="uploadId=2%7Ex"), KEY)
