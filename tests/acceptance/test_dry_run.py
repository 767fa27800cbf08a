"""A dry run writes nothing, and what it says is what the ingest then does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acceptance_made import placed
from cli_runner import dstream as command
from dstream.ingest import Layout
from dstream.measure import Purpose
from dstream.store.opening import open_store
from ingest_made import fill
from made_video import make_video
from s3_services import S3Place

FILES = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Videos of about one size."""
    folder = tmp_path_factory.mktemp("uniform")
    return {
        f"{i % 4}/v{i:03d}.mp4": make_video(
            folder / f"{i}", frames=60, gop=12, seed=i % 8, options={"qp": "2"}
        ).read_bytes()
        for i in range(FILES)
    }


def listing(url: str, server: S3Place | None) -> list[tuple[str, int, str]]:
    store = open_store(url, options=server.options if server else None)
    try:
        return sorted((info.key, info.size_bytes, info.etag) for info in store.list())
    finally:
        store.close()


@pytest.mark.parametrize("where", ["local", pytest.param("rgw", marks=pytest.mark.rgw)])
@pytest.mark.parametrize("layout", list(Layout))
def test_a_dry_run_writes_nothing_and_is_right_about_bytes(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    files: dict[str, bytes],
    where: str,
    layout: Layout,
) -> None:
    server: S3Place | None = None
    repository, source = str(tmp_path / "repo"), str(tmp_path / "source")
    if where == "rgw":
        server = request.getfixturevalue("rgw_bucket")
        assert server is not None
        repository, source = f"{server.url}/repo", f"{server.url}/source"
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
    else:
        fill(tmp_path / "source", files)
    with placed(repository, source, server.options if server else None) as here:
        if server:
            for name, data in files.items():
                here.source.put(name, data)
        before = listing(repository, server), listing(source, server)
        ran = command("ingest", source, "--name", "v", "--repo", repository, "--dry-run", "--json")
        assert (ran.code, ran.err) == (0, "")
        assert (listing(repository, server), listing(source, server)) == before
        guess = json.loads(ran.out)[str(layout)]
        start = here.meter.snapshot()
        here.ingest("v", layout=layout)
        spent = here.meter.snapshot().minus(start)
        assert listing(source, server) == before[1]
    if layout is Layout.PACKED:
        read = spent.total("get", Purpose.COPY).bytes_received
        stored = sum(size for _, size, _ in listing(repository, server))
        assert guess["bytes_written"] == pytest.approx(stored, rel=0.1)
    else:
        purposes = (Purpose.INDEX, Purpose.DATA)
        read = sum(spent.total("get", purpose).bytes_received for purpose in purposes)
        asked = sum(spent.total("get", purpose).count for purpose in purposes)
        assert guess["get_requests"] == pytest.approx(asked, rel=0.1)
    assert guess["bytes_read"] == pytest.approx(read, rel=0.1)
