"""The measuring proxy before a real server: what passes is right, and counted."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import pytest
from botocore.config import Config

import dstream as library
from cli_runner import dstream
from dstream.diagnose.proxy import MeasuringProxy, user_upstream
from dstream.diagnose.s3_request import Kind
from dstream.diagnose.shaping import Fault, FaultKind, Shape
from dstream.diagnose.sigv4 import Key, Message, Signature, chunk_signature, sign
from dstream.diagnose.upstream import Upstream
from dstream.errors import InvalidInputError
from dstream.store.options import StoreOptions
from dstream.store.retry import RetryPolicy
from made_video import make_video
from s3_services import ACCESS_KEY, REGION, SECRET_KEY, S3Place, free_port, plain_client

pytestmark = pytest.mark.rgw


@contextmanager
def proxied(place: S3Place, shape: Shape | None = None, **more: Any) -> Iterator[MeasuringProxy]:
    with MeasuringProxy(user_upstream(place.endpoint_url), shape, **more).serving() as proxy:
        yield proxy


def client(proxy: MeasuringProxy, key: Key | None = None, attempts: int = 1) -> Any:
    key = key or proxy.key
    return boto3.client(
        "s3",
        endpoint_url=proxy.endpoint_url,
        aws_access_key_id=key.access,
        aws_secret_access_key=key.secret,
        region_name=REGION,
        config=Config(retries={"total_max_attempts": attempts, "mode": "standard"}),
    )


def kinds(proxy: MeasuringProxy) -> dict[Kind, int]:
    return {kind.kind: kind.requests for kind in proxy.report().kinds}


def test_reads_and_writes_pass_unchanged_and_are_counted(rgw_bucket: S3Place) -> None:
    data = os.urandom(20_000_000)
    with proxied(rgw_bucket) as proxy:
        s3, bucket, key = client(proxy), rgw_bucket.bucket, "a b/ü~(1)+.bin"
        s3.upload_fileobj(io.BytesIO(data), bucket, key)
        s3.put_object(Bucket=bucket, Key="small", Body=b"12345", Metadata={"Note": "a  b"})
        assert s3.head_object(Bucket=bucket, Key="small")["Metadata"] == {"note": "a  b"}
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == data
        part = s3.get_object(Bucket=bucket, Key=key, Range="bytes=100-199")["Body"].read()
        assert part == data[100:200]
        s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "small"})
        listed = s3.list_objects_v2(Bucket=bucket)["Contents"]
        assert [item["Key"] for item in listed] == [key, "copy", "small"]
        with pytest.raises(botocore.exceptions.ClientError, match="NoSuchKey"):
            s3.get_object(Bucket=bucket, Key="absent")
        s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "copy"}]})
        report = proxy.report()
        assert kinds(proxy) == {
            Kind.CREATE_UPLOAD: 1, Kind.PART: 3, Kind.COMPLETE_UPLOAD: 1, Kind.PUT: 1, Kind.HEAD: 1,
            Kind.GET: 3, Kind.COPY: 1, Kind.LIST: 1, Kind.DELETE_MANY: 1,
        }  # fmt: skip
    assert report.received_bytes == len(data) + 100
    assert report.passed_bytes == sum(kind.received_bytes for kind in report.kinds)
    assert (report.unique_bytes, report.reread_bytes) == (len(data), 100)
    assert (report.objects, report.objects_bytes) == (1, len(data))
    assert report.sent_bytes >= len(data) + 5
    assert report.outcomes == {"ok": 13}


def test_a_body_signed_in_chunks_is_signed_anew(rgw_bucket: S3Place) -> None:
    """As Java's SDK uploads over plain http."""
    chunks = [os.urandom(65536), os.urandom(100), b""]
    with proxied(rgw_bucket) as proxy:
        port = int(proxy.endpoint_url.rpartition(":")[2])
        message = Message(
            "PUT",
            f"/{rgw_bucket.bucket}/chunked",
            "",
            [
                ("Host", f"127.0.0.1:{port}"),
                ("Content-Encoding", "aws-chunked"),
                ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
                ("x-amz-decoded-content-length", str(sum(map(len, chunks)))),
            ],
        )
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        signature, added = sign(message, proxy.key, now, REGION)
        good = _framed(chunks, signature, proxy.key)
        for body, status in ((good, 200), (good.replace(chunks[1], os.urandom(100)), 400)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            headers = {**dict(message.headers), **added}
            connection.request("PUT", message.path, body, headers)
            assert connection.getresponse().status == status
            connection.close()
        assert proxy.report().outcomes == {"bad-upload": 1, "ok": 1}
    stored = plain_client(rgw_bucket.endpoint_url).get_object(
        Bucket=rgw_bucket.bucket, Key="chunked"
    )
    assert stored["Body"].read() == b"".join(chunks)


def _framed(chunks: list[bytes], before: Signature, key: Key) -> bytes:
    out = b""
    for data in chunks:
        before = chunk_signature(before, key.secret, data)
        out += b"%x;chunk-signature=%s\r\n%s\r\n" % (len(data), before.value.encode(), data)
    return out


def test_only_the_key_handed_out_is_served_and_only_on_loopback(rgw_bucket: S3Place) -> None:
    with proxied(rgw_bucket) as proxy:
        for key in (Key(ACCESS_KEY, SECRET_KEY), Key(proxy.key.access, "guessed")):
            with pytest.raises(botocore.exceptions.ClientError) as caught:
                client(proxy, key).list_objects_v2(Bucket=rgw_bucket.bucket)
            assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
        host, port = proxy.endpoint_url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as plain:
            plain.sendall(b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % rgw_bucket.bucket.encode())
            assert plain.recv(100).startswith(b"HTTP/1.1 403 AccessDenied")
        report = proxy.report()
        assert (report.refused, report.requests) == (3, 0)
        outside = socket.gethostbyname(socket.gethostname())
        if not outside.startswith("127."):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((outside, int(port)), timeout=5)
        environment = proxy.environment({"AWS_PROFILE": "p", "AWS_SESSION_TOKEN": "t", "HOME": "/"})
    assert not {"AWS_PROFILE", "AWS_SESSION_TOKEN"} & set(environment)
    assert SECRET_KEY not in environment.values()


def test_a_client_that_hangs_up_is_counted_apart(rgw_bucket: S3Place) -> None:
    size = 30_000_000
    plain_client(rgw_bucket.endpoint_url).put_object(
        Bucket=rgw_bucket.bucket, Key="large", Body=bytes(size)
    )
    with proxied(rgw_bucket, Shape(bytes_per_s=100e6)) as proxy:
        body = client(proxy).get_object(Bucket=rgw_bucket.bucket, Key="large")["Body"]
        body.read(1000)
        under_way = proxy.report(settle_s=0)
        assert (under_way.requests, under_way.received_bytes) == (0, 0)
        assert 1000 <= under_way.passed_bytes < size
        body.close()
        report = proxy.report()
    assert report.outcomes == {"client-gone": 1}
    assert report.received_bytes == 0
    assert 1000 <= report.aborted_bytes < size


def test_an_absent_server_is_an_answer_and_not_a_crash(rgw_bucket: S3Place) -> None:
    upstream = Upstream(f"http://127.0.0.1:{free_port()}", REGION, lambda: Key("a", "b"))
    with MeasuringProxy(upstream).serving() as proxy:
        with pytest.raises(botocore.exceptions.ClientError, match="BadGateway"):
            client(proxy).list_objects_v2(Bucket="b")
        assert proxy.report().outcomes == {"upstream": 1}


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://user:secret@host", "host:9000"])
def test_an_unusable_upstream_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Upstream(url, None, None)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", FaultKind)
def test_each_fault_reaches_the_client(kind: FaultKind, rgw_bucket: S3Place) -> None:
    data = os.urandom(2_000_000)
    s3 = plain_client(rgw_bucket.endpoint_url)
    s3.put_object(Bucket=rgw_bucket.bucket, Key="k", Body=data)
    with proxied(rgw_bucket, Shape(faults=(Fault(kind, 1.0, 0.2),))) as proxy:
        got = _read(client(proxy), rgw_bucket.bucket)
        report = proxy.report()
    assert report.outcomes == {f"fault-{kind}": 1}
    if kind is FaultKind.STALL:
        assert got == data
    elif kind is FaultKind.CORRUPT:
        assert isinstance(got, bytes)
        wrong = [i for i, (a, b) in enumerate(zip(got, data, strict=True)) if a != b]
        assert len(wrong) == 1
    else:
        assert isinstance(got, Exception)
        assert report.throttled == (kind is FaultKind.SLOW_DOWN)


def test_a_short_answer_is_cut_behind_its_head(rgw_bucket: S3Place) -> None:
    s3 = plain_client(rgw_bucket.endpoint_url)
    s3.put_object(Bucket=rgw_bucket.bucket, Key="k", Body=b"x" * 1000)
    with proxied(rgw_bucket, Shape(faults=(Fault(FaultKind.TRUNCATE, 1.0),))) as proxy:
        answer = client(proxy).get_object(Bucket=rgw_bucket.bucket, Key="k")
        assert answer["ContentLength"] == 1000
        with pytest.raises(botocore.exceptions.BotoCoreError):
            answer["Body"].read()


def _read(s3: Any, bucket: str) -> bytes | Exception:
    try:
        return bytes(s3.get_object(Bucket=bucket, Key="k")["Body"].read())
    except Exception as error:
        return error


def test_delay_and_bandwidth_are_added(rgw_bucket: S3Place) -> None:
    s3 = plain_client(rgw_bucket.endpoint_url)
    s3.put_object(Bucket=rgw_bucket.bucket, Key="k", Body=bytes(1_000_000))
    with proxied(rgw_bucket, Shape(delay_s=0.05, bytes_per_s=2e6)) as proxy:
        assert isinstance(_read(client(proxy), rgw_bucket.bucket), bytes)
        (kind,) = proxy.report().kinds
    assert kind.first_byte_p50_s >= 0.05
    assert kind.p50_s >= 0.05 + 0.4


# The numbers add up


@pytest.mark.usefixtures("each_engine")
def test_loader_proxy_and_server_agree(rgw_bucket: S3Place, rgw_log: Path, tmp_path: Path) -> None:
    s3 = plain_client(rgw_bucket.endpoint_url)
    for number in range(8):
        video = make_video(tmp_path / f"{number}.mp4", frames=40, gop=4, size=(64, 48), seed=number)
        s3.upload_file(str(video), rgw_bucket.bucket, f"raw/{number}.mp4")
    began = rgw_log.stat().st_size
    log = io.StringIO()
    faults = (Fault(FaultKind.SLOW_DOWN, 0.02), Fault(FaultKind.RESET, 0.02))
    with pytest.MonkeyPatch.context() as patch:
        with proxied(rgw_bucket, Shape(faults=faults, seed=3), log=log) as proxy:
            for name, value in proxy.environment({}).items():
                patch.setenv(name, value)
            patch.setenv("AWS_REGION", REGION)
            retry = RetryPolicy(first_wait_s=0.01)
            options = StoreOptions(endpoint_url=proxy.endpoint_url, retry=retry)
            clips = library.clips(
                f"{rgw_bucket.url}/raw", frames=2, stride=1, clips_per_file=125, options=options
            )
            with clips.loader(batch_size=10, workers=2) as loader:
                assert sum(len(batch) for batch in loader) == 1000
                totals, told = clips.meter.snapshot(), loader.report()
            report = proxy.report()

    # The loader and the proxy: every attempt, by its kind, and why it had to be made again.
    verbs = Counter[str]()
    for key, total in totals.requests.items():
        verbs[key.verb] += total.count
    assert verbs == {str(kind.kind): kind.requests for kind in report.kinds}
    assert verbs["list"] + told.data_requests + told.index_requests == report.requests
    retries, outcomes = totals.event("retry"), report.outcomes
    assert retries["throttled"] == outcomes["fault-503"] == report.throttled
    assert sum(retries.values()) == report.requests - outcomes["ok"]
    assert sum(retries.values()) > 20
    assert told.bytes_received + told.index_bytes == report.received_bytes

    # The proxy's log: completed answers, and the others apart.
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert len(lines) == report.requests
    gets = [line for line in lines if line["kind"] == "get"]
    whole = [line["received_bytes"] for line in gets if line["outcome"] == "ok"]
    cut = [line["received_bytes"] for line in gets if line["outcome"] == "fault-reset"]
    assert (sum(whole), sum(cut)) == (report.received_bytes, report.aborted_bytes)
    assert len(cut) == outcomes["fault-reset"] > 5

    # The server: all that was passed on to it. It sent the answers that were cut off to the end.
    passed_on = [line for line in lines if line["outcome"] != "fault-503"]
    served = _served(rgw_log, began, rgw_bucket.bucket, len(passed_on))
    assert len(served) == len(passed_on)
    # Of objects: the server counts the framing of a listing's HTTP chunks as well.
    sizes = Counter(size for target, size in served if "/raw/" in target)
    assert not Counter(whole) - sizes
    rest = list((sizes - Counter(whole)).elements())
    assert len(rest) == len(cut)
    assert 0 < sum(cut) <= sum(rest)


def _served(log: Path, began: int, bucket: str, wanted: int) -> list[tuple[str, int]]:
    """Target and body bytes of each answer to a GET about ``bucket`` in the server's access log.

    Not of uploads: the line of one made just before may still be to come.
    """
    line = re.compile(rf'"GET (/{bucket}[/? ][^"]*)" \d+ (\d+) ')
    for _ in range(100):  # it is written a moment later
        with log.open("rb") as stream:
            stream.seek(began)
            text = stream.read().decode("latin-1")
        found = [(target, int(size)) for target, size in line.findall(text)]
        if len(found) >= wanted:
            break
        time.sleep(0.1)
    return found


# The command


@pytest.fixture
def upstream(rgw_bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> S3Place:
    monkeypatch.setenv("AWS_ENDPOINT_URL", rgw_bucket.endpoint_url)
    return rgw_bucket


def test_the_command_reports_and_passes_the_exit_code_on(upstream: S3Place, tmp_path: Path) -> None:
    code = (
        "import boto3, sys; c = boto3.client('s3');"
        f"c.put_object(Bucket='{upstream.bucket}', Key='k', Body=b'12345');"
        f"print(c.get_object(Bucket='{upstream.bucket}', Key='k')['Body'].read(), file=sys.stderr);"
        "sys.exit(7)"
    )
    log = tmp_path / "requests.jsonl"
    ran = dstream("proxy", "--json", "--log", log, "--", sys.executable, "-c", code)
    assert ran.code == 7
    document = ran.document()
    assert (document["schema"], document["exit_code"]) == ("dstream.proxy/1", 7)
    assert document["report"]["received_bytes"] == 5
    assert len(log.read_text().splitlines()) == 2
    told = dstream("proxy", "--", sys.executable, "-c", code)
    assert told.code == 7
    for shown in (ran.out, ran.err, told.out, told.err, log.read_text()):
        assert SECRET_KEY not in shown
    assert "get" in told.out
    assert all(len(line) <= 80 for line in told.out.splitlines())


def test_a_command_that_uses_no_s3_is_told_so(upstream: S3Place) -> None:
    ran = dstream("proxy", "--", sys.executable, "-c", "pass")
    assert ran.code == 0
    assert "No request passed the proxy" in ran.out
    assert dstream("proxy", "--", "/no/such/command").code == 10
    assert dstream("proxy", "--fault", "nonsense", "--", "true").code == 2
    assert (
        dstream("proxy", "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)").code
        == 137
    )


def test_a_server_that_is_not_there_is_told_in_words(upstream: S3Place) -> None:
    code = (
        "import boto3, botocore.config as c;"
        "s3 = boto3.client('s3', config=c.Config(retries={'total_max_attempts': 1}));"
        "s3.list_objects_v2(Bucket='bucket')"
    )
    server = f"http://127.0.0.1:{free_port()}"
    ran = dstream("proxy", "--upstream", server, "--", sys.executable, "-c", code)
    assert ran.code == 1
    told = dict(line.split(None, 1) for line in ran.out.splitlines() if line.strip())
    assert told["failed"] == "1 without an answer of the server, or not its end"
    assert told["cost"].startswith("$0.0000050 at ")
    assert not {"reads", "bytes"} & set(told)


def test_what_is_added_names_its_option() -> None:
    assert "--bandwidth: not a byte size: 'fast'" in (
        dstream("proxy", "--bandwidth", "fast", "--", "true").err
    )
    assert "--fault: fault '503=200%'" in dstream("proxy", "--fault", "503=200%", "--", "true").err


def test_a_log_that_cannot_be_written_costs_no_report(upstream: S3Place, tmp_path: Path) -> None:
    absent = dstream("proxy", "--log", tmp_path / "none" / "log", "--", "true")
    assert (absent.code, absent.out) == (2, "")
    assert "none/log: No such file or directory" in absent.err
    code = f"import boto3; boto3.client('s3').list_objects_v2(Bucket='{upstream.bucket}')"
    ran = dstream("proxy", "--log", "/dev/full", "--json", "--", sys.executable, "-c", code)
    assert ran.code == 1
    assert ran.document()["report"]["requests"] == 1
    assert "--log /dev/full: No space left on device; it is not complete" in ran.err


def test_no_thread_stays_behind(upstream: S3Place) -> None:
    before = threading.active_count()
    assert dstream("proxy", "--", "true").code == 0
    assert threading.active_count() == before
