"""Bulk deletes, and single ones for the servers that have none that work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dstream.errors import NotFoundError, StorageError

Wanted = Sequence[tuple[str, str | None]]
"""Whole keys, with the version to delete or None."""

_NO_BULK_CODES = {
    "MissingContentMD5", "InvalidDigest", "BadDigest", "NotImplemented", "MethodNotAllowed",
    "XAmzContentSHA256Mismatch", "InvalidRequest", "MalformedXML", "501", "405",
}  # fmt: skip


def bulk_arguments(wanted: Wanted) -> dict[str, Any]:
    """The ``Delete`` argument of DeleteObjects: only failures are to be answered."""
    objects = [
        {"Key": key} if version is None else {"Key": key, "VersionId": version}
        for key, version in wanted
    ]
    return {"Objects": objects, "Quiet": True}


def bulk_failures(answer: Mapping[str, Any]) -> dict[str, str]:
    """Key -> reason, from the answer of DeleteObjects. Missing objects are no failures."""
    return {
        str(entry["Key"]): f"{entry.get('Code', 'unknown')}: {entry.get('Message', '')}".rstrip(
            ": "
        )
        for entry in answer.get("Errors", ())
        if entry.get("Code") not in ("NoSuchKey", "NoSuchVersion")
    }


def means_no_bulk(error: StorageError) -> bool:
    """Whether the server cannot do bulk deletes as boto3 sends them. Pure."""
    return error.facts.get("code") in _NO_BULK_CODES


def is_gone(error: NotFoundError) -> bool:
    """Whether a single delete found its object gone already, which is what was wanted."""
    return error.facts.get("code") != "NoSuchBucket"
