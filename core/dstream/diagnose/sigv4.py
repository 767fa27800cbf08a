"""AWS Signature Version 4, both ways: check what a client signed, sign anew for another server.

The format is AWS's "Signature Version 4 signing process" for S3: the path keeps its ``//`` and
``..``, and chunked uploads sign every chunk with the signature before it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from dstream.errors import DstreamError
from dstream.store.s3_sign import ALGORITHM, canonical_request, signed_text

UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = hashlib.sha256().hexdigest()

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 +Credential=([^, ]+), *SignedHeaders=([^, ]+), *Signature=([0-9a-f]{64})"
)
_SIGNED = ("host", "content-md5", "content-type", "range")
"""What is signed of a request beside all that is Amazon's own."""
_QUERY_FIELDS = (
    "X-Amz-Credential", "X-Amz-Date", "X-Amz-SignedHeaders", "X-Amz-Signature",
)  # fmt: skip


class SignatureRefusedError(DstreamError):
    """A request was not signed with the key that its sender was given. Fact ``code`` is S3's."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a signature is made with. Its secrets are never shown."""

    access: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature and what it was made for; chunks of a body are signed after it."""

    value: str
    time: str
    """As ``20261130T120000Z``."""
    scope: str
    """``date/region/service/aws4_request``."""

    @property
    def region(self) -> str:
        """The region in the scope."""
        return self.scope.split("/")[1]


@dataclass(frozen=True, slots=True)
class Message:
    """The parts of a request that are signed, as they travel."""

    method: str
    path: str
    """Percent-encoded, without the query."""
    query: str
    """Percent-encoded, without the question mark."""
    headers: Sequence[tuple[str, str]]

    def header(self, name: str) -> str | None:
        """The first header of this name (in lower case)."""
        for key, value in self.headers:  # a generator would take three times as long
            if key.lower() == name:
                return value
        return None


def check(message: Message, key: Key) -> Signature:
    """Check that ``message`` was signed with ``key``, in its headers or its query.

    Raises:
        SignatureRefusedError: it was not.
    """
    claimed, names = _claim(message)
    access, _, scope = claimed.scope.partition("/")
    if scope.count("/") != 3:
        raise _refused("the credential's scope is malformed", "AuthorizationHeaderMalformed")
    if not hmac.compare_digest(access.encode(), key.access.encode()):
        raise _refused("another access key than the one handed out", "InvalidAccessKeyId")
    payload = message.header("x-amz-content-sha256") or UNSIGNED_PAYLOAD
    made_for = Signature("", claimed.time, scope)
    expected = _signed(message, _joined(message.headers), names, payload, made_for, key.secret)
    if not hmac.compare_digest(expected.value, claimed.value):
        raise _refused("the signature does not match", "SignatureDoesNotMatch")
    return expected


def sign(message: Message, key: Key, time: str, region: str) -> tuple[Signature, dict[str, str]]:
    """Sign ``message`` for another server; the signature and the headers to send besides its own.

    ``host`` and ``x-amz-content-sha256`` must be among the message's headers.
    """
    added = {"x-amz-date": time}
    if key.token is not None:
        added["x-amz-security-token"] = key.token
    headers = _joined([*message.headers, *added.items()])
    names = sorted(name for name in headers if name in _SIGNED or name.startswith("x-amz-"))
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    payload = message.header("x-amz-content-sha256") or UNSIGNED_PAYLOAD
    made_for = Signature("", time, scope)
    signature = _signed(message, headers, names, payload, made_for, key.secret)
    added["authorization"] = (
        f"{ALGORITHM} Credential={key.access}/{scope}, SignedHeaders={';'.join(names)}, "
        f"Signature={signature.value}"
    )
    return signature, added


def chunk_signature(before: Signature, secret: str, data: bytes | memoryview) -> Signature:
    """The signature of one chunk of a body, given the one before it."""
    digest = hashlib.sha256(data).hexdigest()
    text = "\n".join(
        (f"{ALGORITHM}-PAYLOAD", before.time, before.scope, before.value, EMPTY_SHA256, digest)
    )
    return Signature(signed_text(secret, before.scope, text), before.time, before.scope)


def trailer_signature(before: Signature, secret: str, trailer: bytes) -> Signature:
    """The signature of the headers after the last chunk, as ``name:value`` lines."""
    digest = hashlib.sha256(trailer).hexdigest()
    text = "\n".join(("AWS4-HMAC-SHA256-TRAILER", before.time, before.scope, before.value, digest))
    return Signature(signed_text(secret, before.scope, text), before.time, before.scope)


def without_signature(query: str) -> str:
    """A query without the parameters of a presigned URL."""
    if "X-Amz-" not in query:
        return query
    return "&".join(part for part in query.split("&") if not part.startswith("X-Amz-"))


def _claim(message: Message) -> tuple[Signature, list[str]]:
    """The signature that a request carries (its scope with the access key) and what it covers."""
    header = message.header("authorization")
    if header is not None:
        match = _AUTHORIZATION.fullmatch(header.strip())
        time = message.header("x-amz-date")
        if match is None or time is None:
            raise _refused("only AWS4-HMAC-SHA256 is understood", "AuthorizationHeaderMalformed")
        return Signature(match[3], time, match[1]), match[2].split(";")
    fields: Mapping[str, str] = dict(
        (name, unquote(value))
        for name, _, value in (part.partition("=") for part in message.query.split("&"))
    )
    if any(name not in fields for name in _QUERY_FIELDS):
        raise _refused("the request is not signed", "AccessDenied")
    credential, time, names, value = (fields[name] for name in _QUERY_FIELDS)
    return Signature(value, time, credential), names.split(";")


def _joined(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Headers as they are signed: by their names in lower case, blanks and repetitions folded."""
    joined: dict[str, str] = {}
    for name, value in headers:
        lowered, folded = name.lower(), " ".join(value.split())
        joined[lowered] = f"{joined[lowered]},{folded}" if lowered in joined else folded
    return joined


def _signed(
    message: Message,
    headers: Mapping[str, str],
    names: Sequence[str],
    payload: str,
    made_for: Signature,
    secret: str,
) -> Signature:
    pairs = sorted(
        (_encoded(name, ""), _encoded(value, ""))
        for name, _, value in (part.partition("=") for part in message.query.split("&") if part)
        if name != "X-Amz-Signature"
    )
    canonical = canonical_request(
        message.method,
        _encoded(message.path, "/"),
        "&".join(f"{name}={value}" for name, value in pairs),
        headers,
        names,
        payload,
    )
    digest = hashlib.sha256(canonical.encode("latin-1", "replace")).hexdigest()
    text = "\n".join((ALGORITHM, made_for.time, made_for.scope, digest))
    return Signature(signed_text(secret, made_for.scope, text), made_for.time, made_for.scope)


def _encoded(text: str, safe: str) -> str:
    """The one encoding that is signed, of what may travel in others (``%7E`` for ``~``)."""
    return quote(unquote(text, "latin-1"), f"{safe}-_.~", "latin-1")


def _refused(why: str, code: str) -> SignatureRefusedError:
    return SignatureRefusedError(
        f"{why}: the proxy serves only requests signed with the key in its environment", code=code
    )
