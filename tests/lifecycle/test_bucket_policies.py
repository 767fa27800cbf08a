"""Three roles on a real server: each can do its job and nothing more."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError

from dstream.catalog import Catalog
from dstream.errors import PermissionDeniedError
from dstream.store.opening import open_store
from lifecycle_made import AT_ONCE, data_keys, publish_files, read_files
from s3_services import S3Place, absent, plain_client

READ = ("s3:GetObject", "s3:ListBucket")
PUBLISH = (*READ, "s3:PutObject")
COLLECT = (*PUBLISH, "s3:DeleteObject", "s3:ListBucketMultipartUploads", "s3:AbortMultipartUpload")
ROLES = {"reader": READ, "publisher": PUBLISH, "collector": COLLECT}


def policy(bucket: str) -> str:
    """The bucket's policy: what docs/guarantees.md says of each role."""
    resources = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
    statements = [
        {
            "Effect": "Allow",
            "Principal": {"AWS": [f"arn:aws:iam:::user/dstream-{role}"]},
            "Action": list(actions),
            "Resource": resources,
        }
        for role, actions in ROLES.items()
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


@pytest.fixture
def url(rgw_bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in rgw_bucket.environment.items():
        monkeypatch.setenv(name, value)
    client = plain_client(rgw_bucket.endpoint_url)
    try:
        client.put_bucket_policy(Bucket=rgw_bucket.bucket, Policy=policy(rgw_bucket.bucket))
    except ClientError as error:
        absent("rgw", f"the server has no users for the roles ({error}); see scripts/rgw-up")
    url = f"{rgw_bucket.url}/repo"
    with closing(open_store(url)) as store:
        catalog = Catalog.create(store)
        for number in range(3):
            publish_files(catalog, "run", {"weights": f"text {number}"})
    return url


@contextmanager
def role(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """The repository as one role opens it."""
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", f"dstream-{name}")
        patch.setenv("AWS_SECRET_ACCESS_KEY", f"dstream-{name}-secret")
        with closing(open_store(url)) as store:
            yield Catalog.open(store)


@pytest.mark.rgw
def test_a_reader_reads_and_uses_a_token_of_somebody_else(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with role(url, "publisher", monkeypatch) as publisher:
        token = publisher.pin(pin_id="minted").token
    with role(url, "reader", monkeypatch) as reader:
        assert read_files(reader, reader.resolve("run@latest")) == {"weights": "text 2"}
        frozen = Catalog.open_at(reader.store, token)
        assert read_files(frozen, frozen.resolve("run@v1")) == {"weights": "text 0"}
        assert reader.verify(deep=True).is_whole
        assert len(reader.pins(with_bytes=True)) == 1
        before = reader.head().seq
        for refused in (
            lambda: publish_files(reader, "run", {"weights": "x"}),
            lambda: reader.promote("run@v1", "prod"),
            lambda: reader.pin(),
            lambda: reader.renew("minted"),
            lambda: reader.unpin("minted"),
            lambda: reader.retire("run@v1"),
            lambda: reader.gc(AT_ONCE),
        ):
            with pytest.raises(PermissionDeniedError, match="s3:PutObject was refused") as error:
                refused()
            assert error.value.facts["permission"] == "s3:PutObject"
        assert reader.head().seq == before


@pytest.mark.rgw
def test_a_publisher_commits_and_deletes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with role(url, "publisher", monkeypatch) as publisher:
        assert publish_files(publisher, "run", {"weights": "mine"}).version == 4
        publisher.promote("run@v2", "prod")
        publisher.retire("run@v1")
        with pytest.raises(PermissionDeniedError, match="MultipartUpload"):
            publisher.gc(AT_ONCE)
        assert len(data_keys(publisher.store)) == 4, "nothing was deleted"
        assert publisher.verify(deep=True).is_whole


@pytest.mark.rgw
def test_a_collector_collects(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with role(url, "publisher", monkeypatch) as publisher:
        publisher.retire("run@v1")
    with role(url, "collector", monkeypatch) as collector:
        report = collector.gc(AT_ONCE)
        assert (report.swept, report.failed) == (["run@v1"], {})
        assert len(data_keys(collector.store)) == 2
        assert collector.verify(deep=True).is_whole


@pytest.mark.rgw
def test_a_stranger_gets_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PermissionDeniedError), role(url, "stranger", monkeypatch) as nobody:
        nobody.head()


ACTIONS: dict[str, Callable[[Any, str], object]] = {
    "s3:GetObject": lambda s3, bucket: s3.get_object(Bucket=bucket, Key="there"),
    "s3:ListBucket": lambda s3, bucket: s3.list_objects_v2(Bucket=bucket),
    "s3:PutObject": lambda s3, bucket: s3.put_object(Bucket=bucket, Key="new", Body=b"x"),
    "s3:DeleteObject": lambda s3, bucket: s3.delete_object(Bucket=bucket, Key="new"),
    "s3:ListBucketMultipartUploads": lambda s3, bucket: s3.list_multipart_uploads(Bucket=bucket),
    "s3:AbortMultipartUpload": lambda s3, bucket: s3.abort_multipart_upload(
        Bucket=bucket, Key="there", UploadId="none"
    ),
    "s3:GetBucketPolicy": lambda s3, bucket: s3.get_bucket_policy(Bucket=bucket),
    "s3:PutObjectAcl": lambda s3, bucket: s3.put_object_acl(
        Bucket=bucket, Key="there", ACL="public-read"
    ),
    "s3:DeleteBucket": lambda s3, bucket: s3.delete_bucket(Bucket=bucket),
}


@pytest.mark.rgw
@pytest.mark.parametrize("name", ROLES)
def test_nothing_more_is_allowed(url: str, rgw_bucket: S3Place, name: str) -> None:
    """By plain requests, whatever the library asks for."""
    bucket = rgw_bucket.bucket
    with closing(plain_client(rgw_bucket.endpoint_url)) as owner:
        owner.put_object(Bucket=bucket, Key="there", Body=b"x")
    answers = {}
    with closing(plain_client(rgw_bucket.endpoint_url, f"dstream-{name}")) as client:
        for action, ask in ACTIONS.items():
            try:
                ask(client, bucket)
                answers[action] = "OK"
            except ClientError as error:
                answers[action] = error.response["Error"]["Code"]
    may = {action: "OK" for action in ROLES[name]}
    if "s3:AbortMultipartUpload" in may:
        may["s3:AbortMultipartUpload"] = "NoSuchUpload"
    assert answers == dict.fromkeys(ACTIONS, "AccessDenied") | may
