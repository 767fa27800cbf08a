"""The commands on S3: environment, pass-through arguments, and nothing secret in messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_runner import dstream
from made_video import make_video
from s3_services import SECRET_KEY, S3Place, plain_client


@pytest.fixture
def place(moto_bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> S3Place:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_bucket.endpoint_url)
    monkeypatch.setenv("DSTREAM_REPO", f"{moto_bucket.url}/repo")
    return moto_bucket


def test_every_verb_on_s3_with_arguments_passed_through(place: S3Place, tmp_path: Path) -> None:
    client = plain_client(place.endpoint_url)
    video = make_video(tmp_path / "a b.mp4", frames=60)
    client.upload_file(str(video), place.bucket, "raw/day1/a b.mp4")
    encrypted = ["--s3-arg", "ServerSideEncryption=AES256", "--s3-arg", "RequestPayer=requester"]
    assert dstream("init", f"{place.url}/repo", *encrypted).code == 0
    source = f"{place.url}/raw"
    for name, layout in (("packed", []), ("placed", ["--in-place"])):
        ran = dstream("ingest", source, "--name", name, *layout, *encrypted)
        assert (ran.code, ran.err) == (0, "")
    for item in client.list_objects_v2(Bucket=place.bucket, Prefix="repo/")["Contents"]:
        head = client.head_object(Bucket=place.bucket, Key=item["Key"])
        assert head.get("ServerSideEncryption") == "AES256", item["Key"]
    client.close()
    assert "packed" in dstream("ls", *encrypted).out
    assert "60 frames" in dstream("show", "placed", "day1/a b.mp4").out
    assert "60 frames" in dstream("show", f"{source}/day1/a b.mp4").out
    for target in ("packed", "placed", source):
        ran = dstream("bench", target, "--clips", "4", "--frames", "4", "--batch-size", "2")
        assert (ran.code, ran.err) == (0, "")
        assert "1.00 data requests" in ran.out


def test_messages_hold_no_secret(place: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = dstream("ls", "--debug", "--s3-arg", "SSECustomerKey=topsecret")
    assert ran.code == 10
    assert "topsecret" not in ran.err + ran.out
    assert SECRET_KEY not in ran.err + ran.out
    ran = dstream("ls", "--repo", "s3://no-such-bucket-of-ours/x")
    assert ran.code in (1, 10)
    assert "there is no bucket 'no-such-bucket-of-ours'" in ran.err
    assert "None" not in ran.err
    assert "404" not in ran.err
