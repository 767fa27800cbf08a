"""S3 and what speaks its protocol, as a store.

Every HTTP request is counted where it is made. No client here retries: ``retry.py`` does, and
counts it. Conditional writes go by a client of their own with a short timeout.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from dstream.errors import (
    NotFoundError,
    PermissionDeniedError,
    ShortReadError,
    SourceChangedError,
    StorageError,
)
from dstream.measure import Purpose
from dstream.store.base import Blob, Capabilities, ObjectInfo, Upload
from dstream.store.local_errors import source_opened
from dstream.store.metered import Attempt
from dstream.store.ranges import check_prefix, check_range, stop_within
from dstream.store.s3_answers import (
    answer_date_s,
    list_page,
    listed_info,
    uploads_page,
    written_info,
)
from dstream.store.s3_base import S3Base
from dstream.store.s3_delete import (
    Wanted,
    bulk_arguments,
    bulk_failures,
    is_gone,
    means_no_bulk,
)
from dstream.store.s3_errors import Target, translated
from dstream.store.s3_ranged import RangedRead, require_etag, unquoted
from dstream.store.s3_upload import upload_file

T = TypeVar("T")

_PAGE = 1000


class S3Store(S3Base):
    """Objects below ``s3://bucket/prefix``. Clients are made at the first request."""

    @property
    def capabilities(self) -> Capabilities:
        """Asks the bucket once whether it keeps versions; without the permission: no.

        Directory buckets of S3 Express list in no order.
        """
        if self._versioned is None:
            self._versioned = self._is_versioned()
        ordered = not self._bucket.endswith("--x-s3")
        return Capabilities(conditional_put=True, ordered_list=ordered, versioned=self._versioned)

    def head(
        self, key: str, *, version: str | None = None, purpose: Purpose = Purpose.OTHER
    ) -> ObjectInfo:
        """Facts of one object."""
        target = self._target("HeadObject", key)
        named = {} if version is None else {"VersionId": version}
        answer = self._request(
            "head",
            purpose,
            target,
            lambda clients: clients.data.head_object(
                Bucket=self._bucket, Key=target.key, **named, **clients.arguments["HeadObject"]
            ),
        )
        return written_info(key, answer, int(answer["ContentLength"]))

    def get(
        self,
        key: str,
        start_byte: int = 0,
        stop_byte: int | None = None,
        *,
        expect_etag: str | None = None,
        version: str | None = None,
        purpose: Purpose = Purpose.OTHER,
    ) -> Blob:
        """Bytes ``[start_byte, stop_byte)``; one request, unless the range is empty."""
        check_range(key, start_byte, stop_byte)
        wanted = RangedRead(
            self._bucket,
            self._whole_key(key),
            key,
            start_byte,
            stop_byte,
            None if expect_etag is None else unquoted(expect_etag),
            version,
            self._if_match,
        )
        if start_byte == stop_byte:
            return self._nothing(wanted, purpose)
        try:
            return self._read(wanted, purpose)
        except SourceChangedError as error:
            if error.facts.get("status") != 412 or not self._misjudged(wanted, purpose):
                raise
        return self._read(wanted._replace(send_if_match=False), purpose)

    def put(self, key: str, data: bytes, *, purpose: Purpose = Purpose.OTHER) -> ObjectInfo:
        """Write or replace one object by one request."""
        target = self._target("PutObject", key)
        answer = self._request(
            "put",
            purpose,
            target,
            lambda clients: clients.data.put_object(
                Bucket=self._bucket, Key=target.key, Body=data, **clients.arguments["PutObject"]
            ),
            len(data),
        )
        return written_info(key, answer, len(data))

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        """Create one object by one request with ``If-None-Match: *``.

        Raises:
            AlreadyExistsError: the key is taken.
            OutcomeUnknownError: a 5xx, a reset or a timeout; the write may have landed.
            StorageError: with fact ``code`` ``ConditionalRequestConflict`` (409) nothing was
                decided, and the same bytes may be sent to the same key again; otherwise the
                request never left this machine.
        """
        target = self._target("PutObject", key, conditional=True)
        answer = self._request(
            "put-if-absent",
            purpose,
            target,
            lambda clients: clients.commit.put_object(
                Bucket=self._bucket,
                Key=target.key,
                Body=data,
                IfNoneMatch="*",
                **clients.arguments["PutObject"],
            ),
            len(data),
        )
        return written_info(key, answer, len(data))

    def upload(self, key: str, path: Path, *, purpose: Purpose = Purpose.COPY) -> ObjectInfo:
        """Write one object from a local file, then ask for its facts.

        Parts are retried singly; a failed upload is aborted. Raises ``StorageError`` when the
        object's size is not the file's afterwards.
        """
        target = self._target("PutObject", key)
        with source_opened(path) as source:
            size_bytes = os.fstat(source.fileno()).st_size
        with translated(target):
            clients, _ = self._ready()
            upload_file(
                clients,
                target,
                path,
                self._options,
                lambda verb, sent, call: self._part(verb, purpose, target, sent, call),
            )
        info = self.head(key, purpose=purpose)
        if info.size_bytes != size_bytes:
            raise StorageError(
                f"{target.url} has {info.size_bytes} bytes after the upload of {size_bytes}: "
                "the file changed meanwhile, or another writer replaced the object",
                key=key,
            )
        return info

    def list(
        self,
        prefix: str = "",
        *,
        start_after: str | None = None,
        limit: int | None = None,
        purpose: Purpose = Purpose.LISTING,
    ) -> Iterator[ObjectInfo]:
        """Objects page by page. Folder markers and names that cannot be keys are skipped.

        Skips are counted as ``("list-skip", reason)`` and told to ``on_skip``.
        """
        target = Target("ListObjectsV2", self._bucket, self._prefix + check_prefix(prefix))
        named: dict[str, Any] = {"Prefix": target.key}
        if start_after:
            named["StartAfter"] = self._prefix + start_after
        left = limit
        while left is None or left > 0:
            named["MaxKeys"] = _PAGE if left is None else min(_PAGE, left)
            page = self._persist(
                lambda: self._request(
                    "list", purpose, target, lambda clients: list_page(clients, self._bucket, named)
                )
            )
            date_s = answer_date_s(page)
            for entry in page.get("Contents", ()):
                info, skipped = listed_info(entry, self._prefix, date_s)
                if skipped is not None:
                    self._skip(info.key, skipped)
                    continue
                left = None if left is None else left - 1
                yield info
            if not page.get("IsTruncated"):
                return
            named["ContinuationToken"] = page["NextContinuationToken"]

    def delete_many(
        self, keys: Iterable[tuple[str, str | None]], *, purpose: Purpose = Purpose.OTHER
    ) -> dict[str, str]:
        """Delete a thousand a request; one by one where the server has no bulk delete."""
        wanted = [(self._whole_key(key), version) for key, version in keys]
        failed: dict[str, str] = {}
        for first in range(0, len(wanted), _PAGE):
            failed.update(self._delete(wanted[first : first + _PAGE], purpose))
        return {key.removeprefix(self._prefix): reason for key, reason in failed.items()}

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        """Multipart uploads that were neither completed nor aborted."""
        target = Target("ListMultipartUploads", self._bucket, self._prefix + check_prefix(prefix))
        named: dict[str, Any] = {"Prefix": target.key}
        while True:
            page = self._request(
                "list-uploads",
                Purpose.OTHER,
                target,
                lambda c: uploads_page(c, self._bucket, named),
            )
            for entry in page.get("Uploads", ()):
                yield Upload(
                    entry["Key"].removeprefix(self._prefix),
                    entry["UploadId"],
                    entry["Initiated"].timestamp(),
                )
            if not page.get("IsTruncated"):
                return
            named["KeyMarker"] = page["NextKeyMarker"]
            named["UploadIdMarker"] = page["NextUploadIdMarker"]

    def abort_upload(self, upload: Upload) -> None:
        """Forget an upload and its parts; one that is gone already is no error."""
        target = self._target("AbortMultipartUpload", upload.key)
        try:
            self._request(
                "abort-upload",
                Purpose.OTHER,
                target,
                lambda clients: clients.data.abort_multipart_upload(
                    Bucket=self._bucket,
                    Key=target.key,
                    UploadId=upload.upload_id,
                    **clients.arguments["AbortMultipartUpload"],
                ),
            )
        except NotFoundError as error:
            if error.facts.get("code") == "NoSuchBucket":
                raise

    def _part(
        self, verb: str, purpose: Purpose, target: Target, sent_bytes: int, call: Callable[[], T]
    ) -> T:
        def once() -> T:
            with Attempt(self._meter, self._clock, verb, purpose, sent_bytes), translated(target):
                return call()

        # Only parts are safe to repeat on their own: a second start would leave an orphan, and
        # a second completion of a lost first finds no upload.
        return self._persist(once) if verb == "upload-part" else once()

    def _read(self, wanted: RangedRead, purpose: Purpose) -> Blob:
        asked_bytes = 0 if wanted.stop_byte is None else wanted.stop_byte - wanted.start_byte

        def once() -> Blob:
            _, reader = self._made or self._ready_for(wanted.target)
            with Attempt(self._meter, self._clock, "get", purpose, asked_bytes) as traffic:
                blob = reader.read(wanted)
                traffic.received = len(blob.data)
                traffic.requested = asked_bytes or traffic.received
                return blob

        try:
            return self._accepted(once)
        except ShortReadError as error:
            if error.facts.get("status") != 416:
                raise
            # Beyond the end; servers differ in what they say of the size.
            return self._nothing(wanted, purpose)

    def _nothing(self, wanted: RangedRead, purpose: Purpose) -> Blob:
        """An empty range: S3 has no such request, but the object must be there and reach so far."""
        info = self.head(wanted.name, version=wanted.version, purpose=purpose)
        require_etag(wanted, info.etag)
        if stop_within(wanted.name, wanted.start_byte, wanted.stop_byte, info.size_bytes) != (
            wanted.start_byte
        ):
            raise StorageError(
                f"{wanted.target.url}: has {info.size_bytes} bytes, but the server has no bytes "
                f"[{wanted.start_byte}, {wanted.stop_byte}) of it",
                key=wanted.name,
            )
        return Blob(b"", info)

    def _misjudged(self, wanted: RangedRead, purpose: Purpose) -> bool:
        """Whether a 412 was wrong: some servers cannot compare ETags on reads.

        Then reads go without ``If-Match`` from now on; the answer's ETag is compared anyway.
        """
        info = self.head(wanted.name, version=wanted.version, purpose=purpose)
        if info.etag != wanted.expect_etag:
            return False
        self._meter.event("fallback", "if-match-on-get")
        self._if_match = False
        return True

    def _delete(self, batch: Wanted, purpose: Purpose) -> dict[str, str]:
        target = Target("DeleteObjects", self._bucket, self._prefix)
        if self._bulk_delete:
            try:
                answer = self._request(
                    "delete",
                    purpose,
                    target,
                    lambda clients: clients.data.delete_objects(
                        Bucket=self._bucket,
                        Delete=bulk_arguments(batch),
                        **clients.arguments["DeleteObjects"],
                    ),
                )
                return bulk_failures(answer)
            except StorageError as error:
                if not means_no_bulk(error):
                    raise
                self._meter.event("fallback", f"bulk-delete:{error.facts.get('code')}")
                self._bulk_delete = False
        failed = {key: self._delete_one(key, version, purpose) for key, version in batch}
        return {key: reason for key, reason in failed.items() if reason is not None}

    def _delete_one(self, key: str, version: str | None, purpose: Purpose) -> str | None:
        named = {} if version is None else {"VersionId": version}
        try:
            self._request(
                "delete",
                purpose,
                Target("DeleteObject", self._bucket, key),
                lambda clients: clients.data.delete_object(
                    Bucket=self._bucket, Key=key, **named, **clients.arguments["DeleteObject"]
                ),
            )
        except NotFoundError as error:
            if not is_gone(error):
                raise
        except PermissionDeniedError as error:
            return str(error)
        return None

    def _is_versioned(self) -> bool:
        target = Target("GetBucketVersioning", self._bucket)
        try:
            answer = self._persist(
                lambda: self._request(
                    "versioning",
                    Purpose.OTHER,
                    target,
                    lambda clients: clients.data.get_bucket_versioning(
                        Bucket=self._bucket, **clients.arguments["GetBucketVersioning"]
                    ),
                )
            )
        except PermissionDeniedError:
            self._meter.event("fallback", "versioning-denied")
            return False
        except StorageError as error:
            if error.facts.get("status") != 501:
                raise
            self._meter.event("fallback", "versioning-not-implemented")
            return False
        return bool(answer.get("Status") == "Enabled")
