"""Rows of arrays from this machine's disks into a GPU's memory, past the host where kvikio can.

Such bytes pass no checksum, which only the host could compute. So this is asked for, and what it
reads counts as ``bytes.unverified``; what comes from the cache was verified when it was written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from dstream.cache.cache import ExtentCache
from dstream.cache.segment import FilePart
from dstream.errors import InvalidInputError, NotFoundError, ShortReadError
from dstream.format.index import VideoIndex
from dstream.loader.source import FileLocation
from dstream.measure import Meter
from dstream.media.clip import ClipPlan
from dstream.media.decode import DecodedClip
from dstream.media.row_form import RowForm, row_form
from dstream.store.device_read import DeviceReader, probe_kvikio


def refusal(form: RowForm | None, is_packed: bool, is_local: bool, is_cached: bool) -> str | None:
    """Why a clip goes through the host; None where it need not.

    Args:
        form: of its rows; None for video.
        is_packed: its object never changes. One that may is looked at by its store as it is read.
        is_local: the object is a file on this machine.
        is_cached: all of its blocks are in this node's cache.

    >>> refusal(RowForm("float32", (4,)), is_packed=True, is_local=False, is_cached=False)
    'not_local'
    """
    if form is None:
        return "no_array"
    if form.big_endian:
        return "big_endian"
    if is_cached:
        return None
    if not is_local:
        return "not_local"
    return None if is_packed else "in_place"


class DirectRows:
    """Reads the rows of clips directly. Thread-safe.

    Args:
        reader: of the device.
        meter: counts clips that the host reads, as ``fallback`` by reason.
        cache: of this node.
    """

    def __init__(
        self, reader: DeviceReader, meter: Meter, cache: ExtentCache | None = None
    ) -> None:
        self._reader, self._meter, self._cache = reader, meter, cache

    def takes(self, index: VideoIndex, video: FileLocation, plan: ClipPlan) -> bool:
        """Whether a clip can be read directly, now; if not, that is counted by its reason."""
        return self._parts(index, video, plan) is not None

    def rows(self, index: VideoIndex, video: FileLocation, plan: ClipPlan) -> DecodedClip | None:
        """The clip, its rows a tensor [T, ...] on the device; None where its file is gone.

        Raises:
            StorageError: the file cannot be read.
        """
        parts = self._parts(index, video, plan)
        try:
            return None if parts is None else self._read(index, plan, parts)
        except (NotFoundError, ShortReadError):
            self._meter.event("fallback", "direct_gone")
            return None

    def _parts(
        self, index: VideoIndex, video: FileLocation, plan: ClipPlan
    ) -> list[FilePart] | None:
        """Where a clip's blocks lie, in order and without gaps; None where the host reads them."""
        form = row_form(index.track.pix_fmt)
        cached = None if form is None else self._cached(video, plan)
        root = Path(video.store.url)
        is_packed, is_local = video.etag is None, root.is_absolute()
        why = refusal(form, is_packed, is_local, cached is not None)
        if why is not None:
            self._meter.event("fallback", f"direct_{why}")
            return None
        if cached is not None:
            return cached
        start = video.offset_bytes
        first, last = plan.extents[0], plan.extents[-1]
        stop = start + last.offset_bytes + last.size_bytes
        return [FilePart(root / video.key, start + first.offset_bytes, stop)]

    def _cached(self, video: FileLocation, plan: ClipPlan) -> list[FilePart] | None:
        if self._cache is None or video.identity is None:
            return None
        extents = plan.extents
        ranges = [video.byte_range(e.offset_bytes, e.size_bytes, e.checksum) for e in extents]
        return self._cache.locate(video.identity, ranges)

    def _read(self, index: VideoIndex, plan: ClipPlan, parts: list[FilePart]) -> DecodedClip:
        track, packets, pts = index.track, index.packets, plan.target_pts
        form = row_form(track.pix_fmt)
        if packets is None or pts is None or form is None:
            raise InvalidInputError("no array, or no table of its rows")
        pieces = [self._reader.read(part.path, part.start_byte, part.stop_byte) for part in parts]
        held = pieces[0] if len(pieces) == 1 else self._reader.joined(pieces)
        first = int(pts[0])
        skip = int(packets.offset_bytes[first]) - plan.extents[0].offset_bytes
        count = int(pts[-1]) - first + 1
        rows = self._reader.typed(
            held[skip : skip + count * form.size_bytes], form.memory_dtype, (count, *form.shape)
        )
        if count != len(pts):
            rows = rows[(pts - first).tolist()]
        self._meter.add("bytes.unverified", sum(part.size_bytes for part in parts))
        self._meter.add("frames.delivered", len(pts))
        pts_s = ((pts - track.start_pts) * float(track.time_base)).astype(np.float64)
        return DecodedClip(cast("Any", rows), pts, pts_s, plan.frame_index, len(pts), 0)


def direct_rows(device: str | None, meter: Meter, cache: ExtentCache | None) -> DirectRows:
    """Direct reads into a GPU's memory.

    Raises:
        InvalidInputError: the batches do not go to a GPU, or there is none.
    """
    if device is None or not str(device).startswith("cuda"):
        raise InvalidInputError(f"direct=True needs device='cuda', got {device!r}")
    import torch

    if not torch.cuda.is_available():
        raise InvalidInputError("direct=True: torch sees no CUDA device; leave it out")
    return DirectRows(DeviceReader(str(device), meter, probe_kvikio(has_gpu=True)), meter, cache)
