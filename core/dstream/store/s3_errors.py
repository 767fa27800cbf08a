"""What S3's answers and botocore's exceptions mean: the one place where they are translated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache

from botocore import exceptions as boto
from botocore.exceptions import ClientError

from dstream.errors import (
    AlreadyExistsError,
    DstreamError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    SourceChangedError,
    StorageError,
    ThrottledError,
)
from dstream.store.metered import CONFLICT_CODE

_THROTTLED = {
    "SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests",
    "ServiceUnavailable", "503", "429", "RequestThrottled", "BandwidthLimitExceeded",
}  # fmt: skip
_MISSING = {"NoSuchKey", "NoSuchBucket", "NoSuchVersion", "NoSuchUpload", "NotFound", "404"}
_CONFLICTS = {CONFLICT_CODE, "ConcurrentModification", "OperationAborted"}
_CREDENTIALS = {
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "TokenRefreshRequired",
    "InvalidToken", "AuthFailure", "UnrecognizedClientException", "NotSignedUp",
}  # fmt: skip
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
"""Codes of credentials that were good and are no longer."""
_WRONG_REGION = {
    "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "Redirect",
    "IllegalLocationConstraintException", "301", "307",
}  # fmt: skip
_ABSENT_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.SSOError,
    boto.LoginError if hasattr(boto, "LoginError") else boto.NoCredentialsError,
)
# The connection was never made, so that not even a write can have landed.
_NEVER_SENT = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)

_HOW_TO_REACH_A_SERVER = (
    "; nothing answers there: check AWS_ENDPOINT_URL (or the profile's endpoint_url, or "
    "StoreOptions.endpoint_url), the region and the network"
)

_USER_INFO = re.compile(r"://[^/\s\"']*@")

HOW_TO_GIVE_CREDENTIALS = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role is "
    "attached; for a public bucket set DSTREAM_S3_NO_SIGN_REQUEST=1"
)

# The permission that an operation needs, where it is not simply s3:<operation>.
_PERMISSIONS = {
    "HeadObject": "s3:GetObject",
    "ListObjectsV2": "s3:ListBucket",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "DeleteObjects": "s3:DeleteObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a request was about, for messages."""

    operation: str
    """By its boto3 name: ``GetObject``, ``PutObject`` ..."""
    bucket: str
    key: str = ""
    """The whole key; a prefix for listings."""
    name: str = ""
    """The key as the store's users know it, without the store's prefix."""
    conditional: bool = False
    """A put-if-absent: failures that may have landed are unknown, not failed."""

    @property
    def url(self) -> str:
        """``s3://bucket/key``."""
        return f"s3://{self.bucket}/{self.key}".rstrip("/")

    @property
    def permission(self) -> str:
        """The permission that it needs, by its name in policies."""
        return _PERMISSIONS.get(self.operation, f"s3:{self.operation}")


@dataclass(frozen=True, slots=True)
class Answer:
    """A refusal as the server sent it."""

    status: int
    code: str = ""
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def answer_of(error: ClientError) -> Answer:
    """The server's refusal inside a botocore error."""
    meta = error.response.get("ResponseMetadata", {})
    detail = error.response.get("Error", {})
    return Answer(
        int(meta.get("HTTPStatusCode", 0)),
        str(detail.get("Code", "")),
        str(detail.get("Message") or ""),
        {str(k).lower(): str(v) for k, v in meta.get("HTTPHeaders", {}).items()},
    )


def parse_answer(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """The server's refusal from a bare HTTP answer; ``body`` is its first few KiB."""
    text = body.decode("utf-8", "replace")
    found = {
        name: match[1].strip()[:500]
        for name in ("Code", "Message")
        if (match := re.search(rf"<{name}>([^<]*)</{name}>", text)) is not None
    }
    return Answer(status, found.get("Code", ""), found.get("Message", ""), headers)


def error_for(answer: Answer, target: Target) -> DstreamError:
    """The library's error for a server's refusal. Pure."""
    code = answer.code or str(answer.status)
    said = str(answer.status) if code == str(answer.status) else f"{answer.status} {code}"
    said += f": {answer.message}" if answer.message else ""
    facts: dict[str, object] = {
        "operation": target.operation,
        "key": target.name or target.key,
        "bucket": target.bucket,
        "code": code,
        "status": answer.status,
    }
    if target.conditional and answer.status in (412, 304):
        return AlreadyExistsError(f"{target.url} exists already", **facts)
    if target.conditional and (code in _CONFLICTS or answer.status == 409):
        return StorageError(
            f"{target.url}: a rival's write to the same key was in flight and nothing was decided "
            f"({said}); the same bytes may be sent again",
            **{**facts, "code": CONFLICT_CODE},
        )
    if target.conditional and answer.status >= 500 and answer.status != 501:
        return OutcomeUnknownError(
            f"{target.url}: the server failed ({said}) and the write may have landed; read the "
            "object back to know",
            **facts,
        )
    if answer.status in (412, 304):
        return SourceChangedError(
            f"{target.url} is no longer the object that was indexed ({said})", **facts
        )
    if code in _MISSING or answer.status == 404:
        if code == "NoSuchBucket":
            return NotFoundError(
                f"{target.url}: there is no bucket {target.bucket!r} at this server; mind "
                "spelling, region and endpoint",
                **facts,
            )
        missing = {"NoSuchVersion": "version", "NoSuchUpload": "upload"}.get(code, "object")
        return NotFoundError(f"{target.url}: there is no such {missing}", **facts)
    if code in _THROTTLED or answer.status in (429, 503):
        facts["retry_after_s"] = retry_after_s(answer.headers)
        return ThrottledError(f"{target.url}: the store asks to slow down ({said})", **facts)
    return _other_error(answer, target, code, said, facts)


def _other_error(
    answer: Answer, target: Target, code: str, said: str, facts: dict[str, object]
) -> DstreamError:
    if code in _CREDENTIALS or (code.startswith("Expired") and answer.status < 500):
        return PermissionDeniedError(
            f"{target.url}: the credentials were refused ({said}); {HOW_TO_GIVE_CREDENTIALS}",
            **facts,
        )
    if code == "RequestTimeTooSkewed":
        return PermissionDeniedError(
            f"{target.url}: this machine's clock is wrong by more than 15 minutes ({said})", **facts
        )
    if code in _WRONG_REGION or answer.status in (301, 307):
        region = answer.headers.get("x-amz-bucket-region")
        return StorageError(
            f"{target.url}: the bucket is in region {region or 'unknown'} ({said}); give the "
            "region, for example AWS_REGION",
            **{**facts, "bucket_region": region, "retry": False},
        )
    if answer.status in (401, 403, 405):
        hint = (
            "; without s3:ListBucket S3 answers the same for an object that does not exist"
            if target.operation in ("GetObject", "HeadObject")
            else ""
        )
        return PermissionDeniedError(
            f"{target.url}: {target.permission} was refused ({said}){hint}",
            **{**facts, "permission": target.permission},
        )
    if answer.status == 501 or code == "NotImplemented":
        return StorageError(
            f"{target.url}: this server does not implement {target.operation} as asked ({said})",
            **{**facts, "retry": False},
        )
    retry = answer.status >= 500 or code in ("RequestTimeout", "IncompleteBody", "InternalError")
    return StorageError(
        f"{target.url}: {target.operation} failed ({said})", **{**facts, "retry": retry}
    )


def error_for_botocore(error: Exception, target: Target) -> DstreamError:
    """The library's error for an exception that botocore raised. Pure."""
    facts: dict[str, object] = {
        "operation": target.operation,
        "key": target.name or target.key,
        "bucket": target.bucket,
        "code": type(error).__name__,
    }
    if isinstance(error, ClientError):
        return error_for(answer_of(error), target)
    if isinstance(error, _ABSENT_CREDENTIALS):
        return PermissionDeniedError(
            f"{target.url}: no credentials ({error}); {HOW_TO_GIVE_CREDENTIALS}", **facts
        )
    if isinstance(error, boto.ParamValidationError | boto.ProfileNotFound | ValueError) or (
        isinstance(error, boto.NoRegionError | boto.InvalidConfigError)
    ):
        return InvalidInputError(f"{target.url}: {_first_line(error)}", **facts)
    if isinstance(error, _NEVER_SENT):
        return StorageError(f"{target.url}: {_first_line(error)}{_HOW_TO_REACH_A_SERVER}", **facts)
    if not target.conditional:
        return StorageError(f"{target.url}: {_first_line(error)}", **facts)
    return OutcomeUnknownError(
        f"{target.url}: the answer was lost ({_first_line(error)}) and the write may have landed; "
        "read the object back to know",
        **facts,
    )


@contextmanager
def translated(target: Target) -> Iterator[None]:
    """Turn botocore's exceptions in the block into this library's."""
    try:
        yield
    except (boto.BotoCoreError, ClientError) as error:
        raise error_for_botocore(error, target) from error


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server wants us to wait: a number, or a date against its own clock.

    >>> retry_after_s({"retry-after": "3"}), retry_after_s({}), retry_after_s({"retry-after": "x"})
    (3.0, None, None)
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        return float(text)
    until_s, now_s = http_date_s(text), http_date_s(headers.get("date", ""))
    return None if until_s is None or now_s is None else max(0.0, until_s - now_s)


@lru_cache(maxsize=256)
def http_date_s(text: str) -> float | None:
    """Seconds since the epoch of an HTTP date; None when it is none.

    Remembered: answers come many a second, and from few objects.

    >>> http_date_s("Thu, 01 Jan 1970 00:01:00 GMT")
    60.0
    """
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    # An endpoint may hold a proxy's password.
    return _USER_INFO.sub("://", lines[0])[:500] if lines else type(error).__name__
