from __future__ import annotations

import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.catalog import Generation
from dstream.errors import CorruptDataError
from dstream.filesystem.contents import Listing, dataset_contents
from dstream.filesystem.paths import join_url, split_url
from dstream.filesystem.plan import plan_reads
from dstream.format.manifest import Manifest, Part, RecipeRef, TableRef, Totals
from dstream.format.refs import ObjectRef
from dstream.format.schema import Table
from dstream.format.tables import write_table
from dstream.loader.source import FileLocation
from dstream.store.memory import MemoryStore

STORE = MemoryStore()
OBJECTS = {"a": bytes(range(200)), "b": bytes(range(200, 0, -1))}


def location(key: str, offset_bytes: int, size_bytes: int) -> FileLocation:
    return FileLocation(f"{key}-{offset_bytes}", STORE, key, offset_bytes, size_bytes, None)


@st.composite
def wanted(draw: st.DrawFn) -> tuple[FileLocation, int, int]:
    offset = draw(st.integers(0, 150))
    size = draw(st.integers(0, 200 - offset))
    start = draw(st.integers(0, size))
    where = location(draw(st.sampled_from("ab")), offset, size)
    return where, start, draw(st.integers(start, size))


@given(st.lists(wanted(), max_size=12), st.integers(0, 40))
def test_reads_serve_every_range_once_and_nothing_between_them(
    ranges: list[tuple[FileLocation, int, int]], max_gap_bytes: int
) -> None:
    plan = plan_reads(ranges, max_gap_bytes)
    served = [place for read in plan.reads for place in read.serves]
    assert sorted(served) == [n for n, (_, start, stop) in enumerate(ranges) if start < stop]
    for read in plan.reads:
        data = OBJECTS[read.location.key][read.start_byte : read.stop_byte]
        covered: set[int] = set()
        for place in read.serves:
            where, start, stop = ranges[place]
            first = where.offset_bytes + start
            assert where.key == read.location.key
            assert read.cut(data, ranges[place]) == OBJECTS[where.key][first : first + stop - start]
            covered |= set(range(first, first + stop - start))
        assert (min(covered), max(covered) + 1) == (read.start_byte, read.stop_byte)
        gaps = sorted(covered)
        assert all(b - a - 1 <= max_gap_bytes for a, b in itertools.pairwise(gaps))
    for one in plan.reads:
        for other in plan.reads:
            if one is not other and one.location.key == other.location.key:
                apart = max(other.start_byte - one.stop_byte, one.start_byte - other.stop_byte)
                assert apart > max_gap_bytes


@given(
    st.sets(
        st.lists(st.sampled_from(["a", "a-b", "a0", "b", "z"]), min_size=1, max_size=4).map(
            "/".join
        )
    )
)
def test_a_listing_has_every_file_below_its_folders(paths: set[str]) -> None:
    listing = Listing({path: location("a", 0, n) for n, path in enumerate(sorted(paths))})
    seen: list[str] = []
    folders = [""]
    while folders:
        for path, file in listing.children(folders.pop()):
            if file is None:
                folders.append(path)
            else:
                seen.append(path)
    assert sorted(seen) == sorted(paths)


@pytest.mark.parametrize("repo", ["s3://bucket/a/b", "/data/my repo%", "./x", "dstream:s3://x@y"])
def test_a_repository_comes_out_of_a_url_as_it_went_in(repo: str) -> None:
    path = "team/clips@v3/files/50%.mp4"
    assert split_url(join_url(repo, path)) == (repo, path)
    assert split_url(f"dstream://{path}") == (None, path)


@pytest.mark.parametrize(
    ("name", "key", "offset_bytes"),
    [
        ("../../etc/passwd", "data/x.tar", 0),
        ("/etc/passwd", "data/x.tar", 0),
        ("a.mp4", "../outside", 0),
        ("a.mp4", "data/x.tar", -1),
    ],
)
def test_a_hostile_table_is_refused(name: str, key: str, offset_bytes: int) -> None:
    table = write_table(
        Table.FILES,
        {
            "name": [name], "object": [key], "store": [-1], "offset_bytes": [offset_bytes],
            "size_bytes": [1], "checksum": [None], "source_uri": ["x"], "etag": ["e"],
            "version": [None], "role": ["video"],
        },
    )  # fmt: skip
    store = MemoryStore()
    store.put("data/t", table)
    ref = TableRef("data/t", len(table), hashlib.sha256(table).hexdigest(), 1)
    part = Part(ref, ref, ref, None, "packed", 0)
    manifest = Manifest(RecipeRef("video"), ("file:///x",), (part,), Totals(), "t")
    generation = Generation("n", 1, "dataset", ObjectRef("m", 1, "0" * 64), 1, "s", 0, 0.0)
    contents = dataset_contents(generation, manifest, store, lambda url: MemoryStore())
    with pytest.raises(CorruptDataError, match="data/t"):
        contents.children("files")
