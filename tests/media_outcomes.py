"""What becomes of a real file: every clip exact, or a reason why it gives none.

The comparison takes the index and a function that fetches extents, so that it serves for files
on disk, packed into shards, and behind a store alike.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError, MediaError
from dstream.format.index import VideoIndex
from dstream.measure.counters import Meter
from dstream.media.clip import ClipPlan, ClipRequest, Extent, NeedMoreData, coalesce, plan_clip
from dstream.media.decode import ClipDecoder, DecodedClip
from dstream.media.index import index_video
from dstream.media.pixels import FrameConverter, PixelSettings
from dstream.media.reader import FileReader
from sequential import all_frames, array_hash

Fetch = Callable[[Sequence[Extent]], list[bytes]]

EXACT = "exact"
OUTCOMES = Path(__file__).parent / "data" / "media_outcomes.json"
"""Path in the media folder -> outcome. ``python tests/media_outcomes.py FOLDER`` writes it anew;
read the difference before it is committed."""
VIDEO_SUFFIXES = frozenset({".3gp", ".avi", ".flv", ".mkv", ".mov", ".mp4", ".ts", ".webm"})
KINDS: tuple[dict[str, Any], ...] = ({"stride": 1}, {"stride": 2}, {"stride": 4}, {"fps": 10.0})
PLACES = 4
FILE_LIMIT_S = 100


@dataclass(frozen=True)
class FileOutcome:
    """What clips of one file gave."""

    outcome: str
    """``exact``, ``wrong``, or the reason why there are no frames."""
    clips: int = 0
    exact_frames: int = 0
    refused_clips: int = 0
    """Clips that want a frame which a decode of the whole file does not give either."""
    detail: str = ""
    reads: int = 0
    """Ranges fetched for all the clips."""


def videos(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in VIDEO_SUFFIXES)


def fetch_from_file(path: Path) -> Fetch:
    def fetch(extents: Sequence[Extent]) -> list[bytes]:
        with path.open("rb") as file:
            return [_read(file, extent) for extent in extents]

    return fetch


def _read(file: Any, extent: Extent) -> bytes:
    file.seek(extent.offset_bytes)
    data: bytes = file.read(extent.size_bytes)
    return data


def outcome_on_disk(path: Path) -> FileOutcome:
    """Index the file as it lies there and check its clips. Ends the process if it hangs."""
    faulthandler.dump_traceback_later(FILE_LIMIT_S, exit=True)
    try:
        with FileReader(path) as reader:
            index = index_video(reader)[0]
    except MediaError as error:
        return FileOutcome(str(error.reason), detail=str(error))
    else:
        return check_clips(path, index, fetch_from_file(path))
    finally:
        faulthandler.cancel_dump_traceback_later()


def check_clips(path: Path, index: VideoIndex, fetch: Fetch, seed: int = 0) -> FileOutcome:
    """Decode clips at random places and compare each frame, turned and in RGB, bit for bit.

    Args:
        path: the original file, for the decode of the whole.
        index: of that file, wherever its bytes now lie.
        fetch: the bytes of extents.
        seed: of the places.
    """
    decoder = ClipDecoder(PixelSettings(), Meter())
    clips: list[tuple[list[int], list[int]]] = []
    refused: list[tuple[MediaError, list[int]]] = []
    by_order = index.track.container == "avi"  # libav gives its frames the times of decoding
    reads = 0
    for request in clip_requests(index, seed):
        plan = plan_clip(index, request)
        try:
            clip, ranges = decode_clip(decoder, index, plan, fetch)
        except MediaError as error:
            refused.append((error, _names(plan, by_order)))
            continue
        reads += ranges
        names = clip.pts if not by_order or clip.frame_index is None else clip.frame_index
        clips.append((names.tolist(), [array_hash(frame) for frame in clip.video]))
    if not clips:
        first = refused[0][0]
        return FileOutcome(str(first.reason), len(refused), detail=str(first))
    wanted = {name for names, _ in [*clips, *((n, []) for _, n in refused)] for name in names}
    truth = _whole_file(path, index, wanted, by_order)
    wrong = [
        f"frame {name} of clip {number}" + (" is not in the file" if name not in truth else "")
        for number, (names, hashes) in enumerate(clips)
        for name, value in zip(names, hashes, strict=True)
        if truth.get(name) != value
    ]
    wrong += [str(error) for error, names in refused if names and truth.keys() >= set(names)]
    return FileOutcome(
        "wrong" if wrong else EXACT,
        len(clips),
        sum(len(names) for names, _ in clips),
        len(refused),
        "; ".join([*wrong[:3], *(str(error) for error, _ in refused[:1])]),
        reads,
    )


def clip_requests(index: VideoIndex, seed: int) -> list[ClipRequest]:
    """Clips of at most 8 frames, as many as fit, for each kind at some places."""
    track = index.track
    rng = np.random.default_rng(seed)
    requests = []
    for kind in KINDS:
        for _ in range(PLACES):
            start_s = rng.uniform(0, track.duration_s)
            for frames in (8, 4, 2, 1):
                request = ClipRequest(
                    start_s=start_s,
                    frames=frames,
                    start_pts=track.start_pts,
                    end_pts=track.end_pts,
                    **kind,
                )
                if _fits(index, request):
                    requests.append(request)
                    break
    return requests


def _fits(index: VideoIndex, request: ClipRequest) -> bool:
    try:
        plan = plan_clip(index, request)
    except InvalidInputError:
        return False
    if plan.target_pts is not None or request.fps is not None:
        return True
    # Without a packet table only decoding tells; leave room for a rough average rate.
    return request.span_frames <= 0.8 * index.track.duration_s * float(index.track.rate) or (
        request.frames == 1
    )


def decode_clip(
    decoder: ClipDecoder, index: VideoIndex, plan: ClipPlan, fetch: Fetch
) -> tuple[DecodedClip, int]:
    """The clip, and how many ranges had to be fetched, wider plans included."""
    reads = 0
    while True:
        reads += len(coalesce(plan.extents))
        try:
            return decoder.decode(index, plan, fetch(plan.extents)), reads
        except NeedMoreData as need:
            plan = need.plan


def _names(plan: ClipPlan, by_order: bool) -> list[int]:
    names = plan.frame_index if by_order else plan.target_pts
    return [] if names is None else names.tolist()


def _whole_file(path: Path, index: VideoIndex, wanted: set[int], by_order: bool) -> dict[int, int]:
    """Hashes of the wanted frames from a decode of the whole file; the first of equal times."""
    truth: dict[int, int] = {}
    converter = FrameConverter(PixelSettings())
    for number, frame in enumerate(all_frames(path, index.track.track_id)):
        name = number if by_order else frame.pts
        if name in wanted and name not in truth:
            truth[name] = array_hash(_upright(converter, index, frame))
            if len(truth) == len(wanted):
                break
    return truth


def _upright(
    converter: FrameConverter, index: VideoIndex, frame: av.VideoFrame
) -> NDArray[np.generic]:
    """RGB by the size, colours and rotation that libav's demuxer gives the frame."""
    track = replace(
        index.track,
        width=frame.width,
        height=frame.height,
        rotation_deg=-frame.rotation % 360,
    )
    out = np.empty((3, *track.display_size), np.uint8)
    converter.write(frame, track, out)
    return out


def write_table(folder: Path) -> None:
    found = {
        str(path.relative_to(folder)): outcome_on_disk(path).outcome for path in videos(folder)
    }
    OUTCOMES.parent.mkdir(exist_ok=True)
    OUTCOMES.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write_table(Path(sys.argv[1]))
