"""What an S3 request asks for, from its first line and headers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Kind(StrEnum):
    """Kinds of requests; stores charge for them by class, see ``prices``."""

    GET = "get"
    HEAD = "head"
    LIST = "list"
    PUT = "put"
    PART = "part"
    COPY = "copy"
    CREATE_UPLOAD = "create-upload"
    COMPLETE_UPLOAD = "complete-upload"
    ABORT_UPLOAD = "abort-upload"
    DELETE = "delete"
    DELETE_MANY = "delete-many"
    OTHER = "other"


_OBJECT_READS = {"versionId", "partNumber", "x-id"}
"""Query parameters with which a GET still reads an object's bytes."""


@dataclass(frozen=True, slots=True)
class S3Request:
    """One request, told apart by what it does."""

    kind: Kind
    bucket: str
    key: str


def classify(method: str, path: str, query: str, copy_source: bool = False) -> S3Request:
    """What a path-style request does.

    >>> classify("GET", "/b/a/k%20y.mp4", "")
    S3Request(kind=<Kind.GET: 'get'>, bucket='b', key='a/k y.mp4')
    >>> classify("GET", "/b", "list-type=2&prefix=x").kind
    <Kind.LIST: 'list'>
    """
    bucket, _, key = path.lstrip("/").partition("/")
    names = {part.partition("=")[0] for part in query.split("&") if part}
    kind = _kind(method, key, names, copy_source)
    return S3Request(kind, unquote(bucket), unquote(key))


def _kind(method: str, key: str, names: set[str], copy_source: bool) -> Kind:
    if not key:
        if method == "POST" and "delete" in names:
            return Kind.DELETE_MANY
        if method == "HEAD":
            return Kind.HEAD
        lists = not names or names & {"list-type", "prefix", "versions", "uploads", "delimiter"}
        return Kind.LIST if method == "GET" and lists else Kind.OTHER
    if method == "POST":
        if "uploads" in names:
            return Kind.CREATE_UPLOAD
        return Kind.COMPLETE_UPLOAD if "uploadId" in names else Kind.OTHER
    if method == "PUT":
        if "partNumber" in names:
            return Kind.PART
        if names - {"x-id"}:
            return Kind.OTHER
        return Kind.COPY if copy_source else Kind.PUT
    if method == "DELETE":
        return Kind.ABORT_UPLOAD if "uploadId" in names else Kind.DELETE
    if method == "HEAD":
        return Kind.HEAD
    reads = {n for n in names if not n.startswith(("response-", "X-Amz-"))} <= _OBJECT_READS
    return Kind.GET if method == "GET" and reads else Kind.OTHER


def content_range(value: str | None, length: int | None) -> tuple[int, int | None]:
    """Where an answer's first byte lies in its object, and the object's size if it is told.

    >>> content_range("bytes 10-19/100", 10), content_range(None, 50)
    ((10, 100), (0, 50))
    """
    match = None if value is None else _CONTENT_RANGE.fullmatch(value.strip())
    if match is None:
        return 0, length
    return int(match[1]), None if match[3] == "*" else int(match[3])
