"""One batch in the making: rows arrive in any order, from any thread."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from dstream.loader.batch import ArrayMaker, Batch, make_batch
from dstream.loader.buffers import BufferPool
from dstream.loader.pictures import Picture, check_same, picture_of
from dstream.loader.reader import ReadClip, ids_of
from dstream.loader.settings import ClipSettings
from dstream.loader.source import Sample
from dstream.loader.steps import Step
from dstream.measure.spans import ClipId


class PendingBatch:
    """Collects the clips of one step.

    Args:
        step: positions of the clips.
        settings: what a clip is.
        pool: gives the batch's memory when the first size is known.
    """

    def __init__(self, step: Step, settings: ClipSettings, pool: BufferPool) -> None:
        self.step = step
        self._settings = settings
        self._pool = pool
        self._lock = threading.Lock()
        # What each row expects; a row whose clip failed may get one of another size.
        self._pictures: dict[int, tuple[Picture, str]] = {}
        self._video: NDArray[np.generic] | None = None
        self._clips: list[ReadClip | None] = [None] * len(step.positions)
        self._errors: dict[int, BaseException] = {}
        self._left = len(self._clips)
        self._lies_apart = False
        """Rows of it were read on the device."""

    def __len__(self) -> int:
        return len(self._clips)

    def expect(self, row: int, sample: Sample) -> None:
        """Check that a sample's pictures fit into the batch, before anything of it is fetched.

        Raises:
            InvalidInputError: they do not; the message names the option that helps.
        """
        picture = picture_of(sample.index.track, self._settings.pixels)
        with self._lock:
            failed = self._pictures.pop(row, None)
            for other in self._pictures.values():
                check_same(*other, picture, sample.key)
            self._pictures[row] = picture, sample.key
            if failed is not None and failed[0] != picture:
                self._video = None

    def out(self, row: int) -> NDArray[np.generic]:
        """The memory of one clip: [T, C, H, W]."""
        with self._lock:
            if self._video is None:
                picture = self._pictures[row][0]
                shape = (len(self._clips), self._settings.window.frames, *picture.shape)
                self._video = self._pool.take(shape, picture.dtype)
            clip: NDArray[np.generic] = self._video[row]
            return clip

    def put(self, row: int, clip: ReadClip, out: NDArray[np.generic] | None) -> None:
        """A clip is decoded into ``out``, which :meth:`out` gave; None: it lies elsewhere."""
        with self._lock:
            self._lies_apart |= out is None
            video = self._video
            if out is not None and video is not None and video[row].base is not out.base:
                np.copyto(video[row], out)
            self._clips[row] = clip

    def leave_memory(self) -> None:
        """Go on in other memory: somebody who cannot be stopped may write into this."""
        with self._lock:
            left = self._video
            if left is None:
                return
            self._video = self._pool.take(left.shape, left.dtype)
            for row, clip in enumerate(self._clips):
                if clip is not None and isinstance(clip.decoded.video, np.ndarray):
                    np.copyto(self._video[row], left[row])

    def settle(self, row: int, error: BaseException | None) -> None:
        """A row is done, or failed for good."""
        with self._lock:
            self._left -= 1
            if error is not None:
                self._errors[row] = error

    @property
    def is_settled(self) -> bool:
        """Every row is done or failed."""
        return self._left == 0

    @property
    def ids(self) -> tuple[ClipId, ...]:
        """What spans call its clips, those that are there."""
        return ids_of(clip.planned for clip in self._clips if clip is not None)

    def deliver(self, arrays: ArrayMaker) -> Batch:
        """The batch, once it is settled.

        Raises:
            Whatever the first failed row raised.
        """
        if self._errors:
            raise self._errors[min(self._errors)]
        clips = [clip for clip in self._clips if clip is not None]
        if len(clips) != len(self._clips) or (self._video is None and not self._lies_apart):
            raise RuntimeError("deliver() before all rows were settled")
        video = self._video
        if self._lies_apart:
            video = arrays.stacked([clip.decoded.video for clip in clips])
        window = self._settings.window
        fps = [window.clip_fps(clip.planned.sample.rate) for clip in clips]
        return make_batch(video, clips, fps, arrays)
