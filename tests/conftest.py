"""Services and files that many tests share.

``DSTREAM_RGW_ENDPOINT`` names a Ceph RGW that runs already, ``DSTREAM_MEDIA`` a folder of real
videos; ``DSTREAM_REQUIRE=rgw,media,gpu,fast`` makes their absence a failure instead of a skip. GPU
tests that did not run are counted at the end of the run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from dstream.measure import Meter
from dstream.store import s3_engine, s3_ranged
from dstream.store.s3_connection import Connection, Endpoint
from gpu_presence import gpu_absence
from s3_services import (
    ACCESS_KEY,
    REGION,
    REPOSITORY,
    SECRET_KEY,
    RgwServer,
    S3Place,
    absent,
    moto_server,
    own_bucket,
    require_native,
    rgw_server,
)
from s3_stub import Stub, in_another_thread, ranged, stub_server


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    why = gpu_absence()
    if why is not None:
        absent("gpu", why)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # From the reports, which come together where several processes run the tests.
    reports = [*terminalreporter.getreports("skipped"), *terminalreporter.getreports("error")]
    count = sum("gpu" in report.keywords for report in reports)
    if count and (why := gpu_absence()) is not None:
        terminalreporter.write_line(f"GPU tests not run: {count} ({why})")


# A shell lets what it starts in the background ignore it, and a test's processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test depends on how fast a machine is, and a busy one is slow now and then.
hypothesis.settings.register_profile("dstream", deadline=None)
hypothesis.settings.load_profile("dstream")


@pytest.fixture(scope="session", autouse=True)
def aws_environment() -> Iterator[None]:
    """Credentials of the test servers, and nothing of the developer's own configuration."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("AWS_", "DSTREAM_S3_", "DSTREAM_CACHE")):
                patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_REGION", REGION)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield


@pytest.fixture(params=["python", "native"])
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Ranged reads of S3 by one engine after the other, whatever a store is asked for.

    But for what the native one leaves to Python anyway.
    """
    name = str(request.param)
    if name == "native":
        require_native()

    def forced(_: str, endpoint: Endpoint, meter: Meter) -> Callable[[], Connection]:
        engine = "auto" if s3_engine.unsuited(endpoint) else name
        return s3_engine.connector(engine, endpoint, meter)

    monkeypatch.setattr(s3_ranged, "connector", forced)
    return name


@pytest.fixture(scope="session")
def localhost_certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and its certificate for 127.0.0.1 in one file; the certificate is its own authority."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", folder / "key.pem", "-out", folder / "certificate.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "certificate.pem").read_text())
    return both


def _here(work: Callable[[], Any]) -> Any:
    return work()


@pytest.fixture(params=[_here, in_another_thread], ids=["here", "in_another_thread"])
def each_thread(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Any]:
    """libcurl is driven otherwise where signals may come: in the main thread."""
    found: Callable[[Callable[[], Any]], Any] = request.param
    return found


@pytest.fixture
def ranged_stub() -> Iterator[Stub]:
    """A server that answers with ranges of ``s3_stub.DATA``."""
    with stub_server() as stub:
        stub.answer = ranged
        yield stub


@pytest.fixture
def ranged_tls(localhost_certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """The same over TLS; its certificate is trusted."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(localhost_certificate))
    with stub_server(localhost_certificate) as stub:
        stub.answer = ranged
        yield stub


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """Endpoint of a mock S3 server."""
    with moto_server() as endpoint_url:
        yield endpoint_url


@pytest.fixture(scope="session")
def rgw_process() -> Iterator[RgwServer]:
    """A real S3 server; see ``DSTREAM_RGW_ENDPOINT`` above."""
    with rgw_server() as server:
        yield server


@pytest.fixture(scope="session")
def rgw(rgw_process: RgwServer) -> str:
    """Its endpoint."""
    return rgw_process.endpoint_url


@pytest.fixture
def rgw_log(rgw_process: RgwServer) -> Path:
    """Its access log; of a server that runs already, ``DSTREAM_RGW_LOG``."""
    if rgw_process.log is None:
        absent("rgw", "DSTREAM_RGW_LOG does not name the running server's log")
    return rgw_process.log


@pytest.fixture(scope="session")
def rgw_endpoint(rgw: str) -> str:
    """The same as ``rgw``."""
    return rgw


@pytest.fixture
def moto_bucket(moto_url: str) -> Iterator[S3Place]:
    """A bucket of the test's own on the mock server."""
    with own_bucket(moto_url) as place:
        yield place


@pytest.fixture
def rgw_bucket(rgw: str) -> Iterator[S3Place]:
    """A bucket of the test's own on the real server."""
    with own_bucket(rgw) as place:
        yield place


@pytest.fixture(scope="session")
def media_dir() -> Path:
    """A folder of real videos: ``DSTREAM_MEDIA``, or ``../shared/media`` beside the repository."""
    named = os.environ.get("DSTREAM_MEDIA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "media"
    if not folder.is_dir():
        absent("media", f"there is no folder {folder}")
    return folder
