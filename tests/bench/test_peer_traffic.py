"""The peers' benchmark: what they sent is counted, what went wrong is told."""

from __future__ import annotations

import urllib.request

import boto3
import pytest
from botocore.config import Config

from dstream.diagnose.proxy import MeasuringProxy, user_upstream
from peers.turns import Passed, last_error
from s3_services import REGION, S3Place, plain_client


@pytest.mark.rgw
def test_signed_and_presigned_reads_count_as_data(
    rgw_bucket: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = rgw_bucket.bucket
    plain_client(rgw_bucket.endpoint_url).put_object(Bucket=bucket, Key="a/0.mp4", Body=bytes(1000))
    with MeasuringProxy(user_upstream(rgw_bucket.endpoint_url)).serving() as proxy:
        for name, value in proxy.environment({}).items():
            monkeypatch.setenv(name, value)
        version_4 = Config(signature_version="s3v4")  # as the adapters sign URLs
        client = boto3.client("s3", region_name=REGION, config=version_4)
        client.get_object(Bucket=bucket, Key="a/0.mp4")["Body"].read()
        proxy.report()
        before = Passed.until_now(proxy)
        client.list_objects_v2(Bucket=bucket, Prefix="a/")
        client.head_object(Bucket=bucket, Key="a/0.mp4")
        client.get_object(Bucket=bucket, Key="a/0.mp4", Range="bytes=0-9")["Body"].read()
        url = client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "a/0.mp4"})
        with urllib.request.urlopen(url) as answer:
            assert len(answer.read()) == 1000
        proxy.report()  # waits for the last to be counted
        passed = Passed.until_now(proxy).since(before)
    assert (passed.data_requests, passed.all_requests) == (2, 4)
    assert 1010 < passed.received_bytes < 3000  # a listing besides
    assert passed.proxy_cpu_s > 0


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "no message"),
        ("loading\nready\n", "ready"),
        ("x.py:3: UserWarning: many workers\n  self.check()\n", "self.check()"),
        ("Traceback\nRuntimeError: worker\nx.py:9: UserWarning: leaked\n", "RuntimeError: worker"),
        ("botocore.exceptions.ClientError: no\nbye\n", "botocore.exceptions.ClientError: no"),
        ("Fatal Python error: Aborted\n\nThread 1\n", "Fatal Python error: Aborted"),
    ],
)
def test_the_line_that_names_an_error_is_told(said: str, told: str) -> None:
    assert last_error(said) == told
