"""What real files must give, decided from a plain decode alone, and what a repository gives.

Nothing of an index, a plan or a packet table goes into the reference: frames are numbered, timed
and chosen by libav's own sequential decode. Both halves run in worker processes.
"""

from __future__ import annotations

import faulthandler
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import av
import numpy as np
import xxhash
from numpy.typing import NDArray

import dstream
from dstream.errors import DstreamError, MediaError
from dstream.format.index import VideoTrack
from dstream.media.index import index_video
from dstream.media.pixels import FrameConverter, PixelSettings
from dstream.media.reader import FileReader
from dstream.store.opening import StoreOptions
from s3_services import REGION
from sequential import all_frames, array_hash

HANG_S = 300
"""Of wall time: a file that takes longer ends its process. Machines may be busy."""
MAX_CPU_S = 60.0
"""No file may take longer than this."""
MAX_FRAMES = 4
CLIPS_OF_A_KIND = 2
FPS = 10.0
KINDS: tuple[int | None, ...] = (1, 2, 4, None)
"""Strides; None stands for frames by time."""


@dataclass(frozen=True)
class Wanted:
    """One clip and what it must show."""

    stride: int | None
    frames: int
    start_s: float
    times_s: tuple[float, ...]
    """Of its frames, from the file's first frame."""
    hashes: tuple[int, ...]
    """Of those frames that a decode of the whole file gives."""

    @property
    def is_refused(self) -> bool:
        """A decode of the whole file does not give every frame of it either."""
        return len(self.hashes) < len(self.times_s)


@dataclass(frozen=True)
class Reference:
    """What one file must give: for each place where it is stored, some clips."""

    name: str
    clips: tuple[tuple[Wanted, ...], ...]
    missing_frames: int
    """Frames whose packets the decoder rejects."""
    cpu_s: float


@dataclass(frozen=True)
class Given:
    """What one file gave."""

    name: str
    faults: tuple[str, ...]
    clips: int
    cpu_s: float


def reference(folder: Path, name: str, places: int) -> Reference:
    """Decode the file from end to end, for the times of its frames and the pixels of those chosen.

    Which frames the clips show is only known at the end. Those that the packets' times foretell
    are hashed on the way; where they foretold others, pixels take a decode of their own.
    """
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    began_s = time.process_time()
    path = folder / name
    track = _track(path)
    starts = np.random.default_rng(xxhash.xxh3_64_intdigest(name.encode())).uniform(
        size=(places * CLIPS_OF_A_KIND, len(KINDS))
    )
    _, foretold = _chosen(_foretold(path, track), starts, track)
    shown, hashes = _shown(path, track, foretold)
    chosen, numbers = _chosen(shown, starts, track)
    if numbers - hashes.keys():
        hashes = _hashes(path, track, numbers)
    wanted = [
        Wanted(
            stride,
            len(frames),
            start_s,
            tuple(float(frame.time_s - shown[0].time_s) for frame in frames),
            tuple(hashes[f.number] for f in frames if f.number is not None),
        )
        for clips in chosen
        for stride, (start_s, frames) in zip(KINDS, clips, strict=True)
    ]
    faulthandler.cancel_dump_traceback_later()
    size = len(KINDS) * CLIPS_OF_A_KIND
    return Reference(
        name,
        tuple(tuple(wanted[i * size : (i + 1) * size]) for i in range(places)),
        sum(frame.number is None for frame in shown),
        time.process_time() - began_s,
    )


def stream(url: str, endpoint_url: str | None, name: str, wanted: Sequence[Wanted]) -> Given:
    """Read clips of one sample as a user does and hold them against what they must be."""
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    began_s = time.process_time()
    faults = [fault for clip in wanted if (fault := _fault(url, endpoint_url, name, clip))]
    faulthandler.cancel_dump_traceback_later()
    return Given(name, tuple(faults), len(wanted), time.process_time() - began_s)


def _fault(url: str, endpoint_url: str | None, name: str, wanted: Wanted) -> str | None:
    clips = _clips(url, endpoint_url, wanted.stride)
    try:
        clip = clips.clip(name, start_s=wanted.start_s, frames=wanted.frames)
    except DstreamError as error:
        if wanted.is_refused and isinstance(error, MediaError) and name in str(error):
            return None
        return f"{wanted}: {type(error).__name__}: {error}"
    if wanted.is_refused:
        return f"{wanted}: frames {clip.pts_s} though the decoder does not give them all"
    if not np.allclose(clip.pts_s, wanted.times_s, atol=1e-6):
        return f"{wanted}: other times {clip.pts_s}"
    if tuple(array_hash(frame) for frame in clip.video) != wanted.hashes:
        return f"{wanted}: other pixels at {clip.pts_s}"
    return None


@lru_cache(maxsize=8)
def _repo(url: str, endpoint_url: str | None) -> dstream.Repo:
    options = StoreOptions(endpoint_url=endpoint_url, region=REGION) if endpoint_url else None
    return dstream.open(url, options=options)


@lru_cache(maxsize=32)
def _clips(url: str, endpoint_url: str | None, stride: int | None) -> dstream.Clips:
    fps = FPS if stride is None else None
    return _repo(url, endpoint_url).clips(
        "media", frames=MAX_FRAMES, stride=stride, fps=fps, array="numpy"
    )


def _track(path: Path) -> VideoTrack:
    """Which track and with which colours it is shown; never where or when its frames are."""
    with FileReader(path) as reader:
        return index_video(reader)[0].track


@dataclass(frozen=True)
class Shown:
    """One frame of a file."""

    time_s: Fraction
    number: int | None
    """In the order in which frames come out; None where the decoder rejects its packet."""


def _foretold(path: Path, track: VideoTrack) -> list[Shown]:
    """The frames as far as the packets tell, without a decode."""
    with av.open(str(path)) as container:
        stream = container.streams[track.track_id]
        assert stream.time_base is not None
        packets = [packet for packet in container.demux(stream) if packet.size]
        seen = [packet.dts if track.container == "avi" else packet.pts for packet in packets]
        times = sorted({time for time in seen if time is not None})
        return [Shown(time * stream.time_base, number) for number, time in enumerate(times)]


def _shown(path: Path, track: VideoTrack, wanted: set[int]) -> tuple[list[Shown], dict[int, int]]:
    """The file's frames in the order of their times, the first of those with equal times.

    And hashes of those that are wanted, by number. AVI stores no presentation times, and libav
    gives its frames those of decoding: there the frames have the times of the chunks in turn.
    """
    out: list[int | None] = []
    hashes: dict[int, int] = {}
    converter = FrameConverter(PixelSettings())
    chunks: list[int] = []
    rejected: list[int | None] = []
    with av.open(str(path)) as container:
        stream = container.streams[track.track_id]
        assert isinstance(stream, av.VideoStream)
        assert stream.time_base is not None
        base = stream.time_base
        stream.codec_context.thread_count = 1
        for packet in container.demux(stream):
            if packet.size and packet.dts is not None:
                chunks.append(packet.dts)
            try:
                frames = packet.decode()
            except av.error.FFmpegError:
                rejected.append(packet.pts)
                continue
            for place, frame in enumerate(frames, len(out)):
                if place in wanted:
                    hashes[place] = _pixels(converter, track, frame)
            out += [frame.pts for frame in frames]
    if track.container == "avi":
        times = sorted(chunks)[: len(out)]
        return [Shown(dts * base, number) for number, dts in enumerate(times)], hashes
    numbers: dict[int, int | None] = {}
    for number, pts in [*enumerate(out), *((None, pts) for pts in rejected)]:
        if pts is not None:
            numbers.setdefault(pts, number)
    return [Shown(pts * base, numbers[pts]) for pts in sorted(numbers)], hashes


_Chosen = list[list[tuple[float, list[Shown]]]]


def _chosen(
    shown: Sequence[Shown], starts: NDArray[np.float64], track: VideoTrack
) -> tuple[_Chosen, set[int]]:
    """The clips, and the numbers of their frames."""
    chosen = [
        [_choose(shown, stride, start, track) for stride, start in zip(KINDS, row, strict=True)]
        for row in starts.tolist()
    ]
    frames = [frame for row in chosen for _, clip in row for frame in clip]
    return chosen, {frame.number for frame in frames if frame.number is not None}


def _choose(
    shown: Sequence[Shown], stride: int | None, place: float, track: VideoTrack
) -> tuple[float, list[Shown]]:
    """A random start and the frames that a clip from there shows.

    Args:
        shown: all frames.
        stride: None for frames by time.
        place: of the start, from 0 to 1.
        track: for the file's tick.
    """
    times = [frame.time_s - shown[0].time_s for frame in shown]
    half_tick = track.time_base / 2

    def at(instant: Fraction) -> int:
        return max(i for i, t in enumerate(times) if t <= instant + half_tick)

    if stride is None:
        frames = min(MAX_FRAMES, 1 + math.floor(times[-1] * Fraction(FPS)))
        start_s = place * float(times[-1] - Fraction(frames - 1) / Fraction(FPS))
        instants = [Fraction(start_s) + i / Fraction(FPS) for i in range(frames)]
        return start_s, [shown[at(instant)] for instant in instants]
    frames = min(MAX_FRAMES, 1 + (len(times) - 1) // stride)
    start_s = place * float(times[-1])
    # A clip that would cross the end begins earlier.
    first = min(at(Fraction(start_s)), len(times) - 1 - (frames - 1) * stride)
    return start_s, [shown[first + i * stride] for i in range(frames)]


def _hashes(path: Path, track: VideoTrack, wanted: set[int]) -> dict[int, int]:
    """Of the wanted frames as displayed, in RGB; ends after the last of them."""
    found: dict[int, int] = {}
    converter = FrameConverter(PixelSettings())
    for number, frame in enumerate(all_frames(path, track.track_id)):
        if number in wanted:
            found[number] = _pixels(converter, track, frame)
        if len(found) == len(wanted):
            break
    return found


def _pixels(converter: FrameConverter, track: VideoTrack, frame: av.VideoFrame) -> int:
    """Hash of the frame with the size and rotation that libav gives it."""
    shown = replace(
        track, width=frame.width, height=frame.height, rotation_deg=-frame.rotation % 360
    )
    out = np.empty((3, *shown.display_size), np.uint8)
    converter.write(frame, shown, out)
    return array_hash(out)
