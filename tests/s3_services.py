"""S3 servers for tests: moto in a process of its own, and a real Ceph RGW."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import boto3
import pytest
from botocore.config import Config

from dstream.store import libcurl
from dstream.store.opening import StoreOptions

REPOSITORY = Path(__file__).resolve().parent.parent
ACCESS_KEY = "dstream"
SECRET_KEY = "dstream-secret"
REGION = "us-east-1"


@dataclass(frozen=True)
class S3Place:
    """A bucket of its own on a server. Credentials are in the environment."""

    endpoint_url: str
    bucket: str

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    @property
    def options(self) -> StoreOptions:
        return StoreOptions(endpoint_url=self.endpoint_url, region=REGION)

    @property
    def environment(self) -> dict[str, str]:
        """For child processes, beside the credentials."""
        return {"AWS_ENDPOINT_URL": self.endpoint_url}


def required(service: str) -> bool:
    """Whether the absence of a service is a failure: ``DSTREAM_REQUIRE=rgw,media``."""
    return service in os.environ.get("DSTREAM_REQUIRE", "").replace(",", " ").split()


def absent(service: str, why: str) -> NoReturn:
    """Skip, or fail where the service is required."""
    if required(service):
        pytest.fail(f"{service} is required by DSTREAM_REQUIRE and absent: {why}")
    pytest.skip(why)


def require_native() -> None:
    """The engine of ranged reads that the extra ``fast`` brings."""
    if isinstance(libcurl.load(), str):
        absent("fast", "pycurl is not installed")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def plain_client(endpoint_url: str, user: str = ACCESS_KEY) -> Any:
    """A client that goes around the store under test."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        aws_access_key_id=user,
        aws_secret_access_key=f"{user}-secret",
        region_name=REGION,
        config=Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


@contextmanager
def own_bucket(endpoint_url: str) -> Iterator[S3Place]:
    """A new bucket, emptied at the end: the servers keep their objects in memory."""
    client = plain_client(endpoint_url)
    bucket = f"t-{uuid.uuid4().hex[:20]}"
    client.create_bucket(Bucket=bucket)
    try:
        yield S3Place(endpoint_url, bucket)
    finally:
        for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
            for entry in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
                client.delete_object(
                    Bucket=bucket, Key=entry["Key"], VersionId=entry.get("VersionId", "null")
                )
        client.close()


@contextmanager
def moto_server() -> Iterator[str]:
    """The endpoint of a moto server in a process of its own."""
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV_")}
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        wait_for(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=30)


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if server.poll() is not None:
            break
        time.sleep(0.1)
    pytest.fail(f"the server did not start (exit code {server.poll()})")


@dataclass(frozen=True)
class RgwServer:
    """A Ceph RGW and where it writes its access log."""

    endpoint_url: str
    log: Path | None
    """None for a running server whose log is not named by ``DSTREAM_RGW_LOG``."""


@contextmanager
def rgw_server() -> Iterator[RgwServer]:
    """The Ceph RGW that runs already, or one started here."""
    running = os.environ.get("DSTREAM_RGW_ENDPOINT")
    if running:
        log = os.environ.get("DSTREAM_RGW_LOG")
        yield RgwServer(running, Path(log) if log else None)
        return
    if shutil.which("radosgw") is None:
        absent("rgw", "radosgw is not installed")
    # Not pytest's own folder: the daemons' sockets want a short path.
    folder = Path(tempfile.mkdtemp(prefix="dstream-rgw-"))
    try:
        yield RgwServer(_start_rgw(folder), folder / "run" / "out" / "client.rgw.log")
    finally:
        subprocess.run([REPOSITORY / "scripts" / "rgw-down", folder], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _start_rgw(folder: Path) -> str:
    said = ""
    for _ in range(3):  # a port that was free may be taken a moment later
        started = subprocess.run(
            [REPOSITORY / "scripts" / "rgw-up", folder, str(free_port()), str(free_port())],
            capture_output=True,
            text=True,
            check=False,
        )
        if started.returncode == 0:
            return started.stdout.split()[-1]
        said = started.stderr[-2000:]
    pytest.fail(f"scripts/rgw-up failed: {said}")
