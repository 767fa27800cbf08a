"""Reading boto3's answers: pages of listings, and the facts of one object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dstream.errors import InvalidInputError
from dstream.store.base import ObjectInfo, check_key
from dstream.store.s3_client import Clients
from dstream.store.s3_errors import http_date_s
from dstream.store.s3_ranged import unquoted


def list_page(clients: Clients, bucket: str, named: Mapping[str, Any]) -> Any:
    """One page of objects."""
    return clients.data.list_objects_v2(
        Bucket=bucket, **named, **clients.arguments["ListObjectsV2"]
    )


def uploads_page(clients: Clients, bucket: str, named: Mapping[str, Any]) -> Any:
    """One page of unfinished uploads."""
    return clients.data.list_multipart_uploads(
        Bucket=bucket, **named, **clients.arguments["ListMultipartUploads"]
    )


def answer_date_s(answer: Mapping[str, Any]) -> float | None:
    """The server's clock when it answered."""
    return http_date_s(answer["ResponseMetadata"]["HTTPHeaders"].get("date", ""))


def written_info(key: str, answer: Mapping[str, Any], size_bytes: int) -> ObjectInfo:
    """Facts of one object from the answer to a put or a head."""
    modified = answer.get("LastModified")
    date_s = answer_date_s(answer)
    return ObjectInfo(
        key,
        size_bytes,
        unquoted(str(answer.get("ETag", ""))),
        answer.get("VersionId"),
        last_modified_s=date_s if modified is None else modified.timestamp(),
        server_date_s=date_s,
    )


def listed_info(
    entry: Mapping[str, Any], prefix: str, date_s: float | None
) -> tuple[ObjectInfo, str | None]:
    """Facts of one listed object, and why a listing leaves it out, or None.

    Left out are folder markers (names that end in ``/``, as consoles make them) and names that
    cannot be keys of a store.
    """
    key = str(entry["Key"]).removeprefix(prefix)
    info = ObjectInfo(
        key,
        int(entry["Size"]),
        unquoted(str(entry["ETag"])),
        last_modified_s=entry["LastModified"].timestamp(),
        server_date_s=date_s,
    )
    if not key or key.endswith("/"):
        return info, "folder-marker"
    try:
        check_key(key, root_length=len(prefix.encode()))
    except InvalidInputError:
        return info, "bad-name"
    return info, None
