"""Uploads of files to S3: s3transfer's parts and threads, with every request counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from s3transfer.manager import TransferConfig, TransferManager

from dstream.store.options import StoreOptions
from dstream.store.s3_client import Clients
from dstream.store.s3_errors import Target

T = TypeVar("T")


class Send(Protocol):
    """Runs one request: counts it, translates its errors, and retries it where that is safe."""

    def __call__(self, verb: str, sent_bytes: int, call: Callable[[], T]) -> T:
        """``verb`` as in ``metered.py``; ``sent_bytes`` of body."""
        ...


def upload_file(
    clients: Clients, target: Target, path: Path, options: StoreOptions, send: Send
) -> None:
    """Send a file as one object, in parts when it is larger than ``options.part_bytes``.

    Memory is bounded by the threads' reads; a failed upload is aborted.
    """
    config = TransferConfig(
        multipart_threshold=options.part_bytes,
        multipart_chunksize=options.part_bytes,
        max_request_concurrency=options.upload_threads,
        max_submission_concurrency=1,
    )
    known = {**clients.arguments["PutObject"], **clients.arguments["CreateMultipartUpload"]}
    extra = {k: v for k, v in known.items() if k in TransferManager.ALLOWED_UPLOAD_ARGS}
    with TransferManager(_CountedClient(clients.data, send), config) as manager:
        manager.upload(str(path), target.bucket, target.key, extra_args=extra).result()


class _CountedClient:
    """The part of a boto3 client that s3transfer uses for uploads."""

    def __init__(self, client: Any, send: Send) -> None:
        self._client = client
        self._send = send
        self.meta = client.meta
        self.exceptions = client.exceptions

    def put_object(self, **named: Any) -> Any:
        return self._with_body("put", self._client.put_object, named)

    def upload_part(self, **named: Any) -> Any:
        return self._with_body("upload-part", self._client.upload_part, named)

    def create_multipart_upload(self, **named: Any) -> Any:
        return self._send("create-upload", 0, lambda: self._client.create_multipart_upload(**named))

    def complete_multipart_upload(self, **named: Any) -> Any:
        return self._send(
            "complete-upload", 0, lambda: self._client.complete_multipart_upload(**named)
        )

    def abort_multipart_upload(self, **named: Any) -> Any:
        return self._send("abort-upload", 0, lambda: self._client.abort_multipart_upload(**named))

    def _with_body(self, verb: str, call: Callable[..., Any], named: dict[str, Any]) -> Any:
        body = named["Body"]

        def once() -> Any:
            body.seek(0)  # an earlier attempt may have read it
            return call(**named)

        return self._send(verb, len(body), once)
