from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from dstream.errors import CorruptDataError, InvalidInputError, MediaError, MediaReason
from dstream.format.index import VideoIndex
from dstream.measure.counters import Meter
from dstream.media.clip import ClipPlan, ClipRequest, NeedMoreData, plan_clip
from dstream.media.decode import ClipDecoder
from dstream.media.pixels import PixelSettings
from made_video import make_video
from plain_index import plain_index


class Video:
    """A made video, its index, and clips of it."""

    def __init__(self, path: Path, **options: Any) -> None:
        make_video(path, **{"frames": 40, "gop": 10, **options})
        self.data = path.read_bytes()
        self.index = plain_index(path)

    def plan(self, index: VideoIndex | None = None, **values: Any) -> ClipPlan:
        track = self.index.track
        wanted: dict[str, Any] = {"start_s": 0.4, "frames": 4, "stride": 1, **values}
        if "fps" in values:
            del wanted["stride"]
        request = ClipRequest(**wanted, start_pts=track.start_pts, end_pts=track.end_pts)
        return plan_clip(index or self.index, request)

    def fetch(self, plan: ClipPlan, data: bytes | None = None) -> list[bytes]:
        data = data or self.data
        return [data[e.offset_bytes : e.offset_bytes + e.size_bytes] for e in plan.extents]

    def checked(self) -> VideoIndex:
        """The index with checksums of all GOPs."""
        gops = self.index.gops
        sums = [
            xxhash.xxh3_64_intdigest(self.data[offset : offset + size])
            for offset, size in zip(gops.offset_bytes, gops.size_bytes, strict=True)
        ]
        return replace(self.index, gops=replace(gops, checksum=np.array(sums, np.uint64)))

    def damaged(self, packet: int) -> bytes:
        """The file with one packet's payload overwritten."""
        table = self.index.packets
        assert table is not None
        start = int(table.offset_bytes[packet])
        stop = start + int(table.size_bytes[packet])
        return self.data[:start] + b"\xff" * (stop - start) + self.data[stop:]


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Video:
    return Video(tmp_path_factory.mktemp("faults") / "video.mp4", b_frames=0)


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def decoder(meter: Meter) -> ClipDecoder:
    return ClipDecoder(PixelSettings(), meter)


def test_checked_bytes_are_not_counted_as_unverified(
    video: Video, decoder: ClipDecoder, meter: Meter
) -> None:
    plan = video.plan(video.checked())
    decoder.decode(video.index, plan, video.fetch(plan))
    assert "bytes.unverified" not in meter.snapshot().sums
    bare = video.plan()
    decoder.decode(video.index, bare, video.fetch(bare))
    assert meter.snapshot().sums["bytes.unverified"] == sum(e.size_bytes for e in bare.extents)


def test_rotten_bytes_are_refused(video: Video, decoder: ClipDecoder) -> None:
    plan = video.plan(video.checked())
    data = video.fetch(plan)
    data[0] = data[0][:50] + bytes([data[0][50] ^ 1]) + data[0][51:]
    with pytest.raises(CorruptDataError, match="checksum") as caught:
        decoder.decode(video.index, plan, data)
    assert caught.value.facts["gop"] == 1


def test_data_must_be_that_of_the_plan(video: Video, decoder: ClipDecoder) -> None:
    plan = video.plan()
    with pytest.raises(InvalidInputError):
        decoder.decode(video.index, plan, [])
    with pytest.raises(CorruptDataError, match="expected"):
        decoder.decode(video.index, plan, [video.fetch(plan)[0][:-1]])


def test_packets_outside_their_gop_are_refused(video: Video, decoder: ClipDecoder) -> None:
    table = video.index.packets
    assert table is not None
    offsets = table.offset_bytes.copy()
    offsets[13] += 10**6
    index = replace(video.index, packets=replace(table, offset_bytes=offsets))
    plan = video.plan(index)
    with pytest.raises(CorruptDataError, match="outside its GOP"):
        decoder.decode(index, plan, video.fetch(plan))


def test_a_given_output_is_filled(video: Video, decoder: ClipDecoder) -> None:
    plan = video.plan()
    out = np.zeros((4, 3, 96, 128), np.uint8)
    clip = decoder.decode(video.index, plan, video.fetch(plan), out)
    assert clip.video is out
    assert out.any(axis=(1, 2, 3)).all()
    for wrong in (np.zeros((4, 3, 96, 64), np.uint8), np.zeros((4, 3, 96, 128), np.uint16)):
        with pytest.raises(InvalidInputError, match="output"):
            decoder.decode(video.index, plan, video.fetch(plan), wrong)


def test_frames_shown_twice_come_twice(video: Video, decoder: ClipDecoder) -> None:
    plan = video.plan(fps=60, frames=6)
    clip = decoder.decode(video.index, plan, video.fetch(plan))
    assert len(set(clip.pts.tolist())) == 3
    assert np.array_equal(clip.video[::2], clip.video[1::2])


def test_memoryviews_will_do(video: Video, decoder: ClipDecoder) -> None:
    plan = video.plan()
    views = [memoryview(data) for data in video.fetch(plan)]
    clip = decoder.decode(video.index, plan, views)
    again = decoder.decode(video.index, plan, video.fetch(plan))
    assert np.array_equal(clip.video, again.video)


def test_an_unreadable_frame_is_damage_and_poisons_nothing(
    video: Video, decoder: ClipDecoder, meter: Meter
) -> None:
    plan = video.plan()
    good = decoder.decode(video.index, plan, video.fetch(plan)).video
    bad = video.fetch(plan, video.damaged(13))
    with pytest.raises(NeedMoreData) as caught:
        decoder.decode(video.index, plan, bad)
    wider = caught.value.plan
    with pytest.raises(MediaError) as final:
        decoder.decode(video.index, wider, video.fetch(wider, video.damaged(13)))
    assert final.value.reason is MediaReason.DAMAGED
    assert final.value.facts["invalid_packets"] == 1
    assert meter.snapshot().event("decode")["invalid-packet"] > 0
    assert np.array_equal(decoder.decode(video.index, plan, video.fetch(plan)).video, good)


def test_empty_packets_do_not_end_the_stream(video: Video, decoder: ClipDecoder) -> None:
    """As mp4 muxers write them for a frame that repeats the one before."""
    table = video.index.packets
    assert table is not None
    sizes = table.size_bytes.copy()
    sizes[17] = 0
    index = replace(video.index, packets=replace(table, size_bytes=sizes))
    plan = video.plan(index)
    clip = decoder.decode(index, plan, video.fetch(plan))
    assert clip.frame_index is not None
    assert clip.frame_index.tolist() == [12, 13, 14, 15]
    late = video.plan(index, start_s=19 / 30, frames=1)
    assert decoder.decode(index, late, video.fetch(late)).frames_decoded == 9


def test_a_codec_that_is_not_built_in_is_named(video: Video, decoder: ClipDecoder) -> None:
    for codec in ("nonesuch", "aac"):
        index = replace(video.index, track=replace(video.index.track, codec=codec))
        with pytest.raises(MediaError) as caught:
            decoder.decode(index, video.plan(), video.fetch(video.plan()))
        assert caught.value.reason is MediaReason.UNSUPPORTED_CODEC


def test_errors_travel_between_processes(video: Video) -> None:
    plan = video.plan()
    need = pickle.loads(pickle.dumps(NeedMoreData("more", plan=plan, side="next-gop")))
    assert need.plan.extents == plan.extents


def test_decoders_of_several_threads_agree(tmp_path: Path) -> None:
    video = Video(tmp_path / "video.mp4", b_frames=3)
    plans = [video.plan(start_s=i / 20, frames=3) for i in range(12)]

    def decode_all(_: int) -> list[bytes]:
        decoder = ClipDecoder(PixelSettings(resize=64), Meter())
        return [decoder.decode(video.index, p, video.fetch(p)).video.tobytes() for p in plans]

    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(decode_all, range(3))
    assert all(other == first for other in others)


def test_random_crops_are_taken_where_the_caller_says(video: Video, meter: Meter) -> None:
    plan = video.plan()
    whole = ClipDecoder(PixelSettings(), meter).decode(video.index, plan, video.fetch(plan))
    settings = PixelSettings(crop=(32, 48), crop_mode="random")
    decoder = ClipDecoder(settings, meter)
    clip = decoder.decode(video.index, plan, video.fetch(plan), crop_at=(0.5, 0.25))
    assert np.array_equal(clip.video, whole.video[:, :, 32:64, 20:68])
