"""The commands on S3: environment, pass-through arguments, and nothing secret in messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

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
        words = ("bench", target, "--details", "--clips", "4", "--frames", "4", "--batch-size", "2")
        ran = dstream(*words)
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


def test_no_object_holds_a_credential(place: S3Place, tmp_path: Path) -> None:
    """Neither as it is, nor inside what is compressed: log, manifests, tables, shards."""
    client = plain_client(place.endpoint_url)
    video = make_video(tmp_path / "a.mp4", frames=30)
    client.upload_file(str(video), place.bucket, "raw/a.mp4")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.bin").write_bytes(b"weights")
    for arguments in (
        ("init", f"{place.url}/repo"),
        ("ingest", f"{place.url}/raw", "--name", "packed"),
        ("ingest", f"{place.url}/raw", "--name", "placed", "--in-place"),
        ("publish", tmp_path / "weights", "--name", "model", "--idempotency-key", "k"),
        ("pin", "--id", "mine", "--owner", "me"),
        ("promote", "packed@v1", "prod"),
    ):
        assert dstream(*arguments).code == 0, arguments
    keys = [
        i["Key"] for i in client.list_objects_v2(Bucket=place.bucket, Prefix="repo/")["Contents"]
    ]
    assert len(keys) > 10
    for key in keys:
        data = client.get_object(Bucket=place.bucket, Key=key)["Body"].read()
        for text in (data, *_unpacked(data)):
            assert SECRET_KEY.encode() not in text, key
            assert b"127.0.0.1" not in text, key  # the endpoint is the machine's, not the data's
    client.close()


def _unpacked(data: bytes) -> list[bytes]:
    """What the zstd frames in ``data`` hold."""
    magic, found, place = b"\x28\xb5\x2f\xfd", [], 0
    while (place := data.find(magic, place)) >= 0:
        try:
            reader = zstandard.ZstdDecompressor().stream_reader(data[place:])
            found.append(reader.read(1 << 20))
        except zstandard.ZstdError:
            pass
        place += 1
    return found
