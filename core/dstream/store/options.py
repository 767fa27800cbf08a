"""Settings of stores. All but ``retry`` concern S3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dstream.errors import InvalidInputError
from dstream.store.retry import RetryPolicy

ARGUMENTS_VARIABLE = "DSTREAM_S3_ARGS"
UNSIGNED_VARIABLE = "DSTREAM_S3_NO_SIGN_REQUEST"
ENGINE_VARIABLE = "DSTREAM_S3_ENGINE"
ENGINES = ("auto", "python", "native")
FAST_EXTRA = "pip install 'dstream[fast]'"
"""What installs the engine ``native``."""
LACKS_FAST = "lacks_fast"
"""Counted with the engines: reads over TLS by Python, because that is not installed."""
_ENGINE_SUM = "engine."

# The store sets these itself; a user's value would change what is read or written.
_OURS = {
    "Body", "Bucket", "ContentLength", "ContentMD5", "Delete", "Delimiter", "EncodingType",
    "IfMatch", "IfModifiedSince", "IfNoneMatch", "IfUnmodifiedSince", "Key", "MaxKeys",
    "MultipartUpload", "PartNumber", "Prefix", "Range", "StartAfter", "ContinuationToken",
    "UploadId", "VersionId",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How to reach a store; the defaults suit AWS and a local disk alike.

    Credentials are found as boto3 finds them and never given here.
    """

    profile: str | None = None
    """A profile of the AWS configuration files; None for boto3's default."""
    endpoint_url: str | None = None
    """Another server than AWS; None for ``AWS_ENDPOINT_URL`` and the like."""
    region: str | None = None
    no_sign_request: bool = False
    """Send anonymous requests, for public buckets."""
    addressing: str = "auto"
    """``path``, ``virtual`` or ``auto``: by path on other servers than AWS."""
    request_args: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Arguments by their boto3 names (``RequestPayer``, ``ServerSideEncryption`` ...), each
    sent with every operation that knows it. Not shown: customer keys are secrets."""
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 60.0
    """Longest wait for an answer, or for the next bytes of one."""
    stall_timeout_s: float = 5.0
    """A ranged read without an answer for so long is given up and tried again, with twice the
    time each time, up to ``read_timeout_s``. Its body has a second a MiB more."""
    commit_timeout_s: float = 10.0
    """Read timeout of put-if-absent: an answer that late is settled by reading back."""
    engine: str = "auto"
    """What makes ranged reads: ``native`` (libcurl, the extra ``fast``), ``python``, or ``auto``:
    native over TLS, where it is installed."""
    connections: int = 64
    """Most connections kept for everything but ranged reads, which keep one a thread."""
    part_bytes: int = 16 * 1024 * 1024
    """Size of the parts of an upload; smaller files go by one request."""
    upload_threads: int = 8
    """Parts of one upload sent at once."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        if self.addressing not in ("auto", "path", "virtual"):
            raise InvalidInputError(
                f"S3 addressing {self.addressing!r} is unknown; use auto, path or virtual"
            )
        if self.engine not in ENGINES:
            raise InvalidInputError(f"engine {self.engine!r} is unknown; use {', '.join(ENGINES)}")
        timeouts = self.connect_timeout_s, self.read_timeout_s, self.stall_timeout_s
        if not min(timeouts) > 0:
            raise InvalidInputError(f"S3 timeouts must be above 0 seconds, got {min(timeouts)}")
        if self.part_bytes < 5 * 1024 * 1024:
            raise InvalidInputError("S3 wants parts of at least 5 MiB (part_bytes)")
        for name in self.request_args:
            if name in _OURS:
                raise InvalidInputError(f"the S3 argument {name} is set by dstream itself")

    def with_environment(self, environment: Mapping[str, str]) -> StoreOptions:
        """Completed from ``DSTREAM_S3_ARGS``, ``_NO_SIGN_REQUEST`` and ``_ENGINE``."""
        named = parse_arguments(environment.get(ARGUMENTS_VARIABLE, ""))
        unsigned = environment.get(UNSIGNED_VARIABLE, "").lower() in ("1", "true", "yes")
        return replace(
            self,
            engine=environment.get(ENGINE_VARIABLE) or "auto"
            if self.engine == "auto"
            else self.engine,
            request_args={**named, **self.request_args},
            no_sign_request=self.no_sign_request or unsigned,
        )


def parse_arguments(text: str) -> dict[str, str]:
    """Arguments written as ``Name=value,Name=value``.

    Raises:
        InvalidInputError: when a part has no ``=``. Values are not repeated in the message.

    >>> parse_arguments("RequestPayer=requester, ACL=bucket-owner-full-control")
    {'RequestPayer': 'requester', 'ACL': 'bucket-owner-full-control'}
    """
    result: dict[str, str] = {}
    for number, part in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        name, equals, value = part.partition("=")
        if not equals or not name.strip().isidentifier():
            raise InvalidInputError(
                f"part {number} of {ARGUMENTS_VARIABLE} is not of the form Name=value"
            )
        result[name.strip()] = value.strip()
    return result


def engine_sum(name: str) -> str:
    """The sum that counts an engine, each time that a store makes its reader: at first, and after
    new credentials or another region."""
    return f"{_ENGINE_SUM}{name}"


def engines_used(sums: Mapping[str, float]) -> dict[str, int]:
    """Counts by engine, out of a meter's sums; and :data:`LACKS_FAST`.

    >>> engines_used({"engine.native": 2, "seconds.wait": 1.5})
    {'native': 2}
    """
    found = {name: int(count) for name, count in sums.items() if name.startswith(_ENGINE_SUM)}
    return {name.removeprefix(_ENGINE_SUM): count for name, count in sorted(found.items())}
