"""Credentials that end in the middle of a run: renewed before, or after they were refused."""

import json
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dstream.errors import PermissionDeniedError
from dstream.measure import Meter
from dstream.store.base import Store
from dstream.store.opening import open_store
from dstream.store.options import StoreOptions
from s3_services import REGION
from s3_stub import Reply, Request, Stub, s3_error, stub_server

RIGHT = Reply(206, b"x" * 10, {"Content-Range": "bytes 0-9/10", "ETag": '"e"'})


@pytest.fixture
def front() -> Iterator[Stub]:
    with stub_server() as stub:
        yield stub


class Issuer:
    """A ``credential_process``: botocore runs it for RefreshableCredentials of its own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._answer = folder / "answer.json"
        config = folder / "config"
        script = f"import pathlib; print(pathlib.Path({str(self._answer)!r}).read_text())"
        (folder / "issue.py").write_text(script)
        config.write_text(
            f"[default]\ncredential_process = {sys.executable} {folder / 'issue.py'}\n"
        )
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.delenv(name)
        patch.setenv("AWS_CONFIG_FILE", str(config))

    def issue(self, token: str, lasts_s: float) -> None:
        until = datetime.now(UTC) + timedelta(seconds=lasts_s)
        answer = {
            "Version": 1, "AccessKeyId": "key", "SecretAccessKey": "secret",
            "SessionToken": token, "Expiration": until.isoformat(),
        }  # fmt: skip
        self._answer.write_text(json.dumps(answer))


@pytest.fixture
def issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Issuer:
    return Issuer(tmp_path, monkeypatch)


def opened(front: Stub, meter: Meter) -> Store:
    options = StoreOptions(endpoint_url=front.endpoint_url, region=REGION)
    return open_store("s3://bucket", options=options, meter=meter)


def accepting(*tokens: str) -> tuple[list[str], object]:
    """An answerer that takes these tokens only, and the tokens that came."""
    seen: list[str] = []

    def answer(request: Request) -> Reply:
        token = request.headers.get("x-amz-security-token", "")
        seen.append(token)
        return RIGHT if token in tokens else s3_error(400, "ExpiredToken")

    return seen, answer


def test_credentials_about_to_end_are_renewed_before(front: Stub, issuer: Issuer) -> None:
    # Ten minutes left: within botocore's advisory time, so that each use asks for newer ones.
    issuer.issue("first", 600)
    seen, front.answer = accepting("first", "second")  # type: ignore[assignment]
    meter = Meter()
    store = opened(front, meter)
    assert store.get("k", 0, 10).data == b"x" * 10
    issuer.issue("second", 7200)
    for _ in range(2):
        assert store.get("k", 0, 10).data == b"x" * 10
    assert seen[0] == "first"
    assert seen[-1] == "second"
    assert meter.snapshot().total("get").count == 3
    assert not meter.snapshot().event("retry")
    store.close()


def test_refused_credentials_are_looked_for_anew(front: Stub, issuer: Issuer) -> None:
    """The server ends them early: a clock that is ahead, or a revoked session."""
    issuer.issue("first", 7200)
    _, front.answer = accepting("first")  # type: ignore[assignment]
    meter = Meter()
    store = opened(front, meter)
    store.get("k", 0, 10)
    issuer.issue("second", 7200)
    seen, front.answer = accepting("second")  # type: ignore[assignment]

    def read() -> None:
        for _ in range(5):
            got.append(store.get("k", 0, 10).data)

    got: list[bytes] = []
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [b"x" * 10] * 20
    # Looked for once, whoever noticed it; every thread was refused once at most.
    assert meter.snapshot().event("credentials") == {"refreshed": 1}
    assert 1 <= seen.count("first") <= 4
    assert meter.snapshot().total("get", outcome="denied").count == seen.count("first")
    store.close()


def test_credentials_in_a_file_that_somebody_rewrites(
    front: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def write(token: str) -> None:
        keys = ("aws_access_key_id=k", "aws_secret_access_key=s", f"aws_session_token={token}")
        file.write_text("\n".join(("[default]", *keys, "")))

    write("first")
    _, front.answer = accepting("first")  # type: ignore[assignment]
    store = opened(front, Meter())
    store.get("k", 0, 10)
    seen, front.answer = accepting("second")  # type: ignore[assignment]
    # Nobody wrote newer ones: the refusal stands, after one request.
    with pytest.raises(PermissionDeniedError, match="credentials were refused"):
        store.get("k", 0, 10)
    assert seen == ["first"]
    write("second")
    assert store.get("k", 0, 10).data == b"x" * 10
    store.close()
