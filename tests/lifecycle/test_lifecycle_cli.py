from __future__ import annotations

from pathlib import Path

import pytest

import dstream as dstream_api
from cli_runner import dstream
from dstream.catalog import Catalog
from dstream.errors import InvalidInputError
from dstream.store.opening import open_store
from lifecycle_made import publish_files


@pytest.fixture
def repo(tmp_path: Path) -> str:
    url = str(tmp_path / "repo")
    catalog = Catalog.create(open_store(url))
    for number in range(1, 4):
        publish_files(catalog, "run", {"weights": f"weights {number}"})
    return url


def test_promote_and_alias(repo: str) -> None:
    assert dstream("promote", "run@v2", "prod", "--repo", repo).out == "run@prod is now v2\n"
    refused = dstream("promote", "run@v3", "prod", "--expect", "v1", "--repo", repo)
    assert refused.code == 11
    assert "is v2, expected v1" in refused.err
    listed = dstream("alias", "run", "--json", "--repo", repo).document()
    assert listed["aliases"] == {"latest": 3, "prod": 2}
    assert dstream("alias", "--remove", "run@prod", "--repo", repo).code == 0
    assert dstream("alias", "--remove", "run@prod", "--repo", repo).code == 10
    assert dstream("alias", "none", "--repo", repo).code == 10
    assert dstream("alias", "--remove", "run", "--repo", repo).code == 2


def test_pin_retire_collect(repo: str) -> None:
    token = dstream("pin", "--id", "p", "--ttl", "30d", "--quiet", "--repo", repo).out.strip()
    again = dstream("pin", "--id", "p", "--quiet", "--repo", repo).out.strip()
    assert again == token
    assert dstream("pin", "--id", "p", "--ttl", "720h", "--repo", repo).code == 0
    longer = dstream("pin", "--id", "p", "--ttl", "90d", "--repo", repo)
    assert longer.code == 11
    assert "dstream renew p --ttl" in " ".join(longer.err.split())
    retired = dstream("retire", "run@v1", "run@v2", "--repo", repo)
    assert retired.code == 0
    assert "once nothing holds them" in retired.err
    assert dstream("retire", "run@v3", "--repo", repo).code == 11
    (pin,) = dstream("pins", "--json", "--repo", repo).document()["pins"]
    assert pin["alone_generations"] == ["run@v1", "run@v2"]
    assert pin["alone_bytes"] > 18
    assert "for ever" not in dstream("pins", "--repo", repo).out
    now = ("--grace", "0s", "--session-grace", "0s", "--repo", repo)
    assert dstream("gc", "--json", *now).document()["swept"] == []
    assert dstream("renew", "p", "--repo", repo).code == 0
    assert dstream("unpin", "p", "--repo", repo).code == 0
    assert dstream("renew", "p", "--repo", repo).code == 11
    dry = dstream("gc", "--dry-run", *now)
    assert "would be given up" in dry.out
    assert "run@v1" in dry.out
    done = dstream("gc", "--json", *now).document()
    assert done["swept"] == ["run@v1", "run@v2"]
    assert "nothing" in dstream("gc", *now).out
    assert dstream("log", "--repo", repo).code == 0


def test_verify_tells_by_its_exit_code(repo: str) -> None:
    assert dstream("verify", "--deep", "--repo", repo).code == 0
    store = open_store(repo)
    key = next(info.key for info in store.list("data/"))
    store.put(key, b"WEIGHTS 1")
    assert dstream("verify", "--repo", repo).code == 0
    damaged = dstream("verify", "--deep", "--repo", repo)
    assert damaged.code == 1
    assert key[-12:] in damaged.out.replace("\n", "").replace(" ", "")
    store.delete_many([(key, None)])
    report = dstream("verify", "--json", "--repo", repo).document()
    assert report["damages"][0]["where"] == key


def test_resolve(repo: str) -> None:
    root = Catalog.open(open_store(repo)).head()
    said = dstream("resolve", root.txn_id, root.seq, "--json", "--repo", repo).document()
    assert said["committed"] is True
    said = dstream("resolve", "0" * 32, root.seq + 1, "--json", "--repo", repo).document()
    assert said["committed"] is False


def test_resolve_without_the_slot_reads_the_log(repo: str) -> None:
    catalog = Catalog.open(open_store(repo))
    first = catalog.at(1).txn_id
    said = dstream("resolve", first, "--json", "--repo", repo).document()
    assert said == {"txn_id": first, "slot": None, "committed": True}
    assert catalog.head().seq == 3
    assert dstream("resolve", "0" * 32, "--json", "--repo", repo).document()["committed"] is False
    assert [op["op"] for op in catalog.head().ops] == ["noop"], "its place is taken"
    assert catalog.head().seq == 4


@pytest.mark.parametrize("txn", ["xx", "0" * 31, "0" * 33, "G" * 32, "../" + "0" * 29])
def test_a_word_that_is_no_transaction_settles_nothing(repo: str, txn: str) -> None:
    before = Catalog.open(open_store(repo)).head().seq
    refused = dstream("resolve", txn, before + 1, "--repo", repo)
    assert refused.code == 2
    assert "32 hex digits" in " ".join(refused.err.split())
    with dstream_api.open(repo) as opened, pytest.raises(InvalidInputError):
        opened.resolve_txn(txn, before + 1)
    assert Catalog.open(open_store(repo)).head().seq == before


def test_a_url_that_lost_a_slash_is_no_name(repo: str) -> None:
    for target in ("s3:/bucket/x", "file:/folder/x"):
        refused = dstream("show", target, "--repo", repo)
        assert refused.code == 2
        assert "two slashes" in " ".join(refused.err.split())
    assert dstream("ls", "--repo", "s3:/bucket/x").code == 2
