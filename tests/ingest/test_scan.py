from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dstream.ingest import Share
from dstream.ingest.scan import in_share, make_units
from dstream.media.kinds import kind_by_name, looks_like_video, stem_of, suffix_of
from dstream.store.base import ObjectInfo
from ingest_made import video_bytes

PARTS = st.sampled_from(["a", "b", "a.b", "run", ".x", "run.left", "é", "a-b"])
NAMES = st.sets(
    st.tuples(PARTS, PARTS, st.sampled_from([".mp4", ".mkv", ".json", ".actions.csv", ".txt", ""]))
).map(lambda names: sorted({f"{folder}/{stem}{end}" for folder, stem, end in names}))


def infos(names: list[str]) -> list[ObjectInfo]:
    return [ObjectInfo(name, 1, "e") for name in names]


@given(NAMES)
def test_units_hold_every_video_once_and_no_side_file_twice(names: list[str]) -> None:
    videos = [name for name in names if kind_by_name(name)]
    others = [name for name in names if not kind_by_name(name)]
    units = make_units(infos(videos), infos(others))
    assert sorted(i.key for unit in units for i in unit.videos) == videos
    side = [i.key for unit in units for i in unit.side]
    assert len(side) == len(set(side))
    assert set(side) <= set(others)
    for unit in units:
        assert {stem_of(i.key) for i in unit.videos} == {unit.stem}
        for info in unit.side:
            assert info.key.startswith(f"{unit.stem}.")
            longer = [u.stem for u in units if info.key.startswith(f"{u.stem}.")]
            assert max(longer, key=len) == unit.stem
    assert make_units(infos(videos[::-1]), infos(others[::-1])) == units


@given(st.lists(st.text(max_size=8), unique=True), st.integers(1, 7))
def test_shares_divide_the_units(stems: list[str], count: int) -> None:
    for stem in stems:
        assert sum(in_share(stem, Share(i, count)) for i in range(1, count + 1)) == 1


def test_suffixes() -> None:
    assert [suffix_of(name) for name in ("a.MP4", "a", ".mp4", "d.x/a", "a.tar.gz")] == [
        ".mp4", "", "", "", ".gz",
    ]  # fmt: skip
    assert [kind_by_name(name) for name in ("a.Mkv", "a.json", "a", "a.xyz")] == [
        True, False, None, None,
    ]  # fmt: skip


def test_videos_are_known_by_their_first_bytes() -> None:
    for container in ("mp4", "mp4-moov-end", "mkv", "flv", "avi", "mpegts", "m2ts", "mpegps"):
        if container == "mpegps":
            data = b"\x00\x00\x01\xba" + bytes(100)
        elif container == "flv":
            data = b"FLV\x01\x05" + bytes(100)
        elif container == "avi":
            data = b"RIFF\x10\x00\x00\x00AVI LIST"
        else:
            data = video_bytes(0, container)
        assert looks_like_video(data[:4096]), container
    others = [
        b"",
        b"{}",
        b"%PDF-1.7",
        b"\x89PNG\r\n\x1a\n",
        b"PK\x03\x04",
        b"G" * 10,
        b"RIFF____WAVE",
    ]
    assert not any(looks_like_video(data) for data in others)


@given(st.binary(max_size=2000))
def test_any_bytes_can_be_looked_at(data: bytes) -> None:
    assert looks_like_video(data) in (True, False)
