"""boto3 sessions and clients as the store needs them: no hidden retries, no surprises."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import botocore.exceptions
import botocore.loaders
import botocore.session
from botocore import UNSIGNED
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.handlers import add_expect_header
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

from dstream.errors import InvalidInputError
from dstream.store.options import StoreOptions
from dstream.store.s3_connection import Endpoint, endpoint_of
from dstream.store.s3_errors import Target, translated

# What the store calls; request arguments are checked against these.
OPERATIONS = (
    "AbortMultipartUpload", "CompleteMultipartUpload", "CreateMultipartUpload", "DeleteObject",
    "DeleteObjects", "GetBucketVersioning", "GetObject", "HeadObject", "ListMultipartUploads",
    "ListObjectsV2", "PutObject", "UploadPart",
)  # fmt: skip

_REGION = "us-east-1"  # boto3 wants one, also of servers that have none
_PLACEHOLDER = "dstream-placeholder-key"
# Headers that belong to one request and are made anew for each.
_PER_REQUEST = {
    "amz-sdk-invocation-id", "amz-sdk-request", "authorization", "x-amz-content-sha256",
    "x-amz-date", "x-amz-security-token", "x-amz-checksum-mode",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GetTemplate:
    """A GetObject request as botocore builds it, but for key, range and signature."""

    url_before: str
    """Everything up to the encoded key."""
    url_after: str
    headers: Mapping[str, str]
    """Constant headers, those of request arguments included. May hold a customer key."""
    region: str | None
    """Region of the signature; None sends the request unsigned."""


class Clients:
    """Everything of botocore that one store uses in one process."""

    def __init__(self, bucket: str, options: StoreOptions) -> None:
        with translated(Target("GetObject", bucket)):
            self._session = botocore.session.Session(profile=options.profile)
            data_path = self._session.get_config_variable("data_path")
            self._session.register_component("data_loader", _loader(data_path))
            self.data = self._client(options, options.read_timeout_s)
        self._options = options
        self._commit: Any = None
        self._lock = threading.Lock()
        self.signed = not options.no_sign_request
        self.custom_endpoint = "amazonaws.com" not in self.data.meta.endpoint_url
        self.arguments = {
            name: _accepted(self.data, name, options.request_args) for name in OPERATIONS
        }
        _require_known(options.request_args, self.arguments)

    @property
    def commit(self) -> Any:
        """The client for conditional writes; made at the first, as readers need none."""
        with self._lock:
            if self._commit is None:
                self._commit = self._client(self._options, self._options.commit_timeout_s)
            return self._commit

    def _client(self, options: StoreOptions, read_timeout_s: float) -> Any:
        style = {} if options.addressing == "auto" else {"addressing_style": options.addressing}
        config: dict[str, Any] = {
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "connect_timeout": options.connect_timeout_s,
            "read_timeout": read_timeout_s,
            "max_pool_connections": options.connections,
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "tcp_keepalive": True,
            "user_agent_extra": "dstream",
            "s3": style,
        }
        if options.no_sign_request:
            config["signature_version"] = UNSIGNED
        try:
            client = self._made(options, config)
            if not style and "amazonaws.com" not in client.meta.endpoint_url:
                # Other servers rarely have a DNS name for every bucket.
                client.close()
                client = self._made(options, {**config, "s3": {"addressing_style": "path"}})
        except (ValueError, botocore.exceptions.UnknownEndpointError) as error:
            raise InvalidInputError(f"unusable S3 endpoint or region: {error}") from error
        # Else every write waits for the server's leave, up to a second on those that give none.
        client.meta.events.unregister("before-call.s3", add_expect_header)
        client.meta.events.register("before-call.s3.DeleteObjects", _add_md5)
        client.meta.events.register("before-call.s3", _forbid_redirects)
        return client

    def _made(self, options: StoreOptions, config: Mapping[str, Any]) -> Any:
        return self._session.create_client(
            "s3",
            endpoint_url=options.endpoint_url or None,
            region_name=options.region
            or self._session.get_config_variable("region")
            or "us-east-1",
            config=Config(**config),
        )

    def template(self, bucket: str) -> GetTemplate:
        """Let botocore build a GetObject and catch it before it is sent."""
        caught: list[Any] = []

        def catch(request: Any, **_: Any) -> AWSResponse:
            caught.append(request)
            return AWSResponse(request.url, 200, {}, _NoBody())

        event = "before-send.s3.GetObject"
        client = self.data
        client.meta.events.register(event, catch)
        try:
            with translated(Target("GetObject", bucket)):
                client.get_object(Bucket=bucket, Key=_PLACEHOLDER, **self.arguments["GetObject"])
        finally:
            client.meta.events.unregister(event, catch)
        before, _, after = caught[0].url.partition(_PLACEHOLDER)
        headers = {str(name): _text(value) for name, value in caught[0].headers.items()}
        return GetTemplate(
            before,
            after,
            {k: v for k, v in headers.items() if k.lower() not in _PER_REQUEST},
            _signed_region(headers.get("Authorization", "")),
        )

    def endpoint(self, url: str) -> Endpoint:
        """How ranged reads reach a server, with boto3's settings for TLS and proxies."""
        bundle = self._session.get_config_variable("ca_bundle")
        return endpoint_of(
            url,
            get_environ_proxies(url),
            get_cert_path(bundle or True),
            self._options.connect_timeout_s,
        )

    def credentials(self) -> Any:
        """Credentials as of now, refreshed when they are about to end; None to go unsigned.

        Raises:
            NoCredentialsError: there are none (botocore's; translate it).
        """
        if not self.signed:
            return None
        found = self._session.get_credentials()
        if found is None:
            raise botocore.exceptions.NoCredentialsError
        return found.get_frozen_credentials()

    def key(self) -> tuple[str, str | None] | None:
        """Which credentials these are: key id and token."""
        try:
            found = self.credentials()
        except botocore.exceptions.BotoCoreError:
            return None
        return None if found is None else (found.access_key, found.token)

    def close(self) -> None:
        """Close the connections of the clients."""
        self.data.close()
        if self._commit is not None:
            self._commit.close()


@lru_cache(maxsize=4)
def _loader(data_path: str | None) -> botocore.loaders.Loader:
    """Service descriptions, parsed once for all stores: they are most of a client's making."""
    return botocore.loaders.create_loader(data_path)


class _NoBody:
    """The body of an answer that never came."""

    def stream(self, *_: object, **__: object) -> Any:
        return iter(())

    def read(self, *_: object) -> bytes:
        return b""


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _signed_region(authorization: str) -> str | None:
    """The region in ``AWS4-HMAC-SHA256 Credential=key/date/region/service/aws4_request, ...``.

    >>> _signed_region("AWS4-HMAC-SHA256 Credential=k/20250101/eu-west-1/s3/aws4_request, Sig")
    'eu-west-1'
    """
    if not authorization:
        return None
    scope = authorization.partition("Credential=")[2].partition(",")[0].split("/")
    if len(scope) < 5 or scope[-2] != "s3":
        raise InvalidInputError(
            "ranged reads sign for plain S3 buckets only; this bucket wants another signature "
            "(S3 Express directory buckets and multi-region access points are not supported)"
        )
    return scope[-3]


def _accepted(client: Any, operation: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Those request arguments that an operation knows, in the types that it wants."""
    members = client.meta.service_model.operation_model(operation).input_shape.members
    return {
        name: value.lower() in ("1", "true") if members[name].type_name == "boolean" else value
        for name, value in given.items()
        if name in members
    }


def _require_known(given: Mapping[str, str], accepted: Mapping[str, Mapping[str, Any]]) -> None:
    unknown = sorted(
        name for name in given if not any(name in known for known in accepted.values())
    )
    if unknown:
        raise InvalidInputError(
            f"S3 knows no argument {', '.join(unknown)}; they are named as in boto3, for example "
            "RequestPayer=requester or ServerSideEncryption=aws:kms"
        )


def _add_md5(params: Any, **_: Any) -> None:
    """Send the checksum of a bulk delete that older servers insist on, beside the newer one."""
    body = params.get("body")
    if isinstance(body, bytes):
        digest = hashlib.md5(body, usedforsecurity=False).digest()
        params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


def _forbid_redirects(params: Any, **_: Any) -> None:
    """Keep botocore from asking for the bucket's region and sending again, uncounted."""
    params.get("context", {}).setdefault("s3_redirect", {})["redirected"] = True


def check_bucket(bucket: str) -> str:
    """A bucket's name, or an access point's ARN, as it stands in a URL.

    Raises:
        InvalidInputError: it can be neither.
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]{3,255}|arn:[\w:/.-]+", bucket):
        raise InvalidInputError(f"{bucket!r} is no bucket name; write s3://bucket/prefix")
    return bucket
