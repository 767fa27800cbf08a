"""The doctor on machines that lack things: a page each time, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli_runner import Ran, dstream
from dstream.clock import FakeClock
from dstream.diagnose.finding import Gap, Page, Verdict
from dstream.diagnose.gpu_checks import rdma_cards
from dstream.diagnose.store_checks import StoreChecks, engine_finding
from dstream.errors import NotFoundError, PermissionDeniedError
from dstream.measure import Meter
from dstream.store.memory import MemoryStore
from s3_services import S3Place, free_port

QUICK = ("--seconds", "0.1")


def lines(ran: Ran) -> dict[str, dict[str, Any]]:
    assert (ran.code, "Traceback" in ran.err + ran.out) == (0, False)
    document = json.loads(ran.out)
    assert document["schema"] == "dstream.doctor/1"
    return {finding["check"]: finding for finding in document["findings"]}


def test_a_folder_and_a_disk(tmp_path: Path) -> None:
    (tmp_path / "video.mp4").write_bytes(bytes(3_000_000))
    found = lines(dstream("doctor", tmp_path, "--cache", tmp_path, "--write", "--json", *QUICK))
    for check in ("round trip", "one stream", "16 streams", "requests", "writing", "reading",
                  "random reads", "CPU decoding"):  # fmt: skip
        assert found[check]["value"] > 0, check
        assert found[check]["unit"]
    assert found["conditional writes"]["verdict"] == "good"
    assert found["listing"]["found"].startswith("1 objects in ")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["video.mp4"]
    assert found["GPU"]["verdict"] in ("good", "absent", "bad")


def test_the_page_fits_a_terminal(tmp_path: Path) -> None:
    ran = dstream("doctor", tmp_path, "--cache", tmp_path, *QUICK)
    assert ran.code == 0
    assert "there is no object to read" in " ".join(ran.out.split())
    assert "nothing is written without --write" in " ".join(ran.out.split())
    assert max(map(len, ran.out.splitlines())) <= 80
    for gap in Gap:
        assert gap.value in ran.out


def test_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    found = lines(dstream("doctor", "s3://bucket/raw", "--cache", tmp_path, "--json", *QUICK))
    assert found["listing"]["verdict"] == "not measured"
    assert found["round trip"]["verdict"] == "not measured"
    assert found["round trip"]["found"] == "what there is to read could not be listed"
    assert "AWS_ENDPOINT_URL" in found["listing"]["found"]
    assert found["writing"]["value"] > 0


def test_a_machine_without_a_gpu_is_given_no_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    found = lines(dstream("doctor", "--cache", tmp_path, "--json"))
    assert (found["GPU"]["verdict"], found["NVDEC"]["verdict"]) == ("absent", "absent")
    assert (found["GPU"]["remedy"], found["NVDEC"]["remedy"]) == ("", "")


def test_with_wrong_credentials(rgw_bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", rgw_bucket.endpoint_url)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
    ran = dstream("doctor", rgw_bucket.url, "--json", *QUICK)
    found = lines(ran)
    assert found["listing"]["verdict"] == "bad"
    assert "credentials" in found["listing"]["remedy"]
    assert found["round trip"]["found"] == "what there is to read could not be listed"
    assert "wrong-and-secret" not in ran.out + ran.err


def test_on_a_real_bucket(rgw_bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", rgw_bucket.endpoint_url)
    found = lines(dstream("doctor", rgw_bucket.url, "--write", "--json", *QUICK))
    assert found["conditional writes"]["verdict"] == "good"
    assert found["credentials"]["found"] == "from env, lasting"


def test_small_objects_say_nothing_of_a_links_width(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_bytes(bytes(9_000))
    found = lines(dstream("doctor", tmp_path, "--cache", tmp_path, "--json", *QUICK))
    for check in ("one stream", "16 streams"):
        assert found[check]["verdict"] == "not measured"
        assert "too small to tell" in found[check]["found"]
    assert found["requests"]["value"] > 0
    found = lines(dstream("doctor", tmp_path / "note.txt", "--cache", tmp_path, "--json", *QUICK))
    assert found["store"]["found"].endswith("note.txt is a file")


def test_a_cache_that_is_not_there_yet_is_measured_above_and_not_made(tmp_path: Path) -> None:
    cache = tmp_path / "new" / "cache"
    found = lines(dstream("doctor", "--cache", cache, "--json", *QUICK))
    assert found["file system"]["found"].startswith(f"{tmp_path}, where {cache} would be made, is")
    assert found["writing"]["value"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written() -> None:
    found = lines(dstream("doctor", "--cache", "/proc", "--json"))
    assert found["writing"]["verdict"] == "not measured"
    assert "--cache" in found["writing"]["remedy"]
    assert found["store"]["remedy"] == "dstream doctor s3://bucket/prefix"


def test_no_url_that_is_one() -> None:
    found = lines(dstream("doctor", "gopher://x", "--json"))
    assert found["store"]["verdict"] == "not measured"
    assert "gopher" in found["store"]["found"]


class Forgetful(MemoryStore):
    """Lets every conditional write through."""

    def put_if_absent(self, key: str, data: bytes, **more: Any) -> Any:
        return self.put(key, data)


def test_a_store_that_ignores_conditions_is_called_bad() -> None:
    page = Page()
    StoreChecks(Forgetful(), FakeClock(), 0.0).run(page, write=True)
    found = {finding.check: finding for finding in page.findings}
    assert found["conditional writes"].verdict is Verdict.BAD
    assert "second write" in found["conditional writes"].found


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(13, "Permission denied", "/c/probe"), "/c/probe: Permission denied"),
        (OSError("odd"), "OSError: odd"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_a_check_that_fails_is_a_line_in_words(error: Exception, told: str) -> None:
    def fail() -> None:
        raise error

    page = Page()
    with page.check(Gap.CACHE, "writing"):
        fail()
    assert [(finding.check, finding.found) for finding in page.findings] == [("writing", told)]


@pytest.mark.parametrize(
    ("url", "error", "remedy"),
    [
        ("s3://b", NotFoundError("no bucket"), "check the URL"),
        ("/films", NotFoundError("no folder"), "check the path"),
        ("/films", PermissionDeniedError("no"), "check the owner and mode of the folder"),
        (
            "s3://b",
            PermissionDeniedError("no"),
            "check the credentials; the role needs s3:ListBucket",
        ),
    ],
)
def test_a_listing_that_fails_says_what_to_look_at(url: str, error: Exception, remedy: str) -> None:
    class Failing(MemoryStore):
        @property
        def url(self) -> str:
            return url

        def list(self, *arguments: object, **more: object) -> Any:
            raise error

    page = Page()
    StoreChecks(Failing(), FakeClock(), 0.0).run(page, write=False)
    (found,) = [finding for finding in page.findings if finding.check == "listing"]
    assert (found.found, found.remedy) == (str(error), remedy)


def test_a_clock_that_is_off_is_told() -> None:
    store = MemoryStore(clock=FakeClock(1_000.0))
    store.put("k", b"12345")
    page = Page()
    StoreChecks(store, FakeClock(5_000.0), 0.0).run(page, write=False)
    (found,) = [finding for finding in page.findings if finding.check == "clock"]
    assert (found.verdict, found.value) == (Verdict.WEAK, -4_000.0)


def test_network_cards_are_those_that_the_kernel_knows(tmp_path: Path) -> None:
    (tmp_path / "mlx5_1").mkdir()
    (tmp_path / "mlx5_0").mkdir()
    assert rdma_cards(tmp_path) == ["mlx5_0", "mlx5_1"]
    assert rdma_cards(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("counted", "told", "verdict"),
    [
        ({"engine.native": 1}, "native", Verdict.GOOD),
        ({"engine.python": 1}, "python", Verdict.GOOD),
        ({"engine.python": 1, "engine.lacks_fast": 1}, "python over TLS", Verdict.WEAK),
    ],
    ids=["native", "python", "lacking"],
)
def test_the_engine_that_read_is_told(counted: dict[str, int], told: str, verdict: Verdict) -> None:
    page, meter = Page(), Meter()
    for name, count in counted.items():
        meter.add(name, count)
    engine_finding(page, meter.snapshot())
    (found,) = page.findings
    assert (found.check, found.found, found.verdict) == ("engine", told, verdict)
    assert (found.remedy == "") is (verdict is Verdict.GOOD)
