"""From URLs to stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstream.errors import InvalidInputError
from dstream.store.opening import open_store
from dstream.store.options import StoreOptions


def test_paths_and_file_urls_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    odd = tmp_path / "a folder#?%20"
    for url in (odd, str(odd), "a folder#?%20", odd.as_uri(), f"{odd}/"):
        assert open_store(url).url == str(odd)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("~/x").url == str(tmp_path / "x")


def test_memory_stores_are_shared_by_name() -> None:
    one, other = open_store("memory://shared-a/p"), open_store("memory://shared-b/p")
    one.put("k", b"1")
    assert open_store("memory://shared-a").get("p/k").data == b"1"
    assert list(other.list()) == []
    assert one.url == "memory://shared-a/p"


def test_s3_urls_name_bucket_and_prefix() -> None:
    assert open_store("s3://bucket/a/b/").url == "s3://bucket/a/b"
    assert open_store("S3://bucket").url == "s3://bucket"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://server/x",
        "gs://bucket/x",
        "s3://",
        "s3:///key",
        "s3://key:secret@bucket/x",
        "s3://bucket/a/../b",
        "s3://bucket//a",
        "s3://bad bucket",
        "memory://",
        "file://server/share",
        "file://relative",
        "file:///a%00b",
        "/a\0b",
    ],
)
def test_bad_urls_are_refused_without_showing_secrets(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_store(url)
    assert "key:secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("s3:/bucket/x", "write s3://bucket/x "),
        ("S3:/bucket", "write s3://bucket "),
        ("file:/folder/x", "write file:///folder/x "),
        ("memory:/name", "write memory://name "),
    ],
)
def test_a_url_that_lost_a_slash_is_corrected(url: str, meant: str) -> None:
    with pytest.raises(InvalidInputError, match=meant):
        open_store(url)
    assert open_store(f"./{url}").url.endswith(f"/{url}"), "a folder may have any name"


def test_a_secret_in_a_url_that_lost_a_slash_is_not_shown() -> None:
    with pytest.raises(InvalidInputError, match="write s3://") as caught:
        open_store("s3:/key:secret@bucket/x")
    assert "secret" not in str(caught.value)


def test_settings_are_checked() -> None:
    for bad in ({"addressing": "both"}, {"part_bytes": 1}):
        with pytest.raises(InvalidInputError):
            StoreOptions(**bad)
