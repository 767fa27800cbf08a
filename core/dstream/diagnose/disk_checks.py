"""The second gap: the disk that a cache would lie on."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dstream.clock import Clock
from dstream.diagnose.finding import Finding, Gap, Page, Verdict, graded
from dstream.loader.order import hash64
from dstream.units import KIB, MIB, format_bytes

_FILE_BYTES = 128 * MIB
_PIECE_BYTES = 4 * MIB
_RANDOM_BYTES = 256 * KIB
_RANDOM_READS = 128
_LEAST_FREE_BYTES = 50e9
# fallocate(2): FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_PUNCH_HOLE = 0x01 | 0x02
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "fuse.s3fs", "fuse.goofys", "lustre", "ceph"}


@dataclass(frozen=True, slots=True)
class DiskChecks:
    """Measures one directory with a file of 128 MiB, which is deleted again.

    Args:
        cache: the directory. One that does not exist yet is not made: what is above it is measured.
        clock: measures.
    """

    cache: Path
    clock: Clock

    @property
    def folder(self) -> Path:
        """The directory, or the nearest one above it that exists."""
        wanted = self.cache.absolute()
        return next(path for path in (wanted, *wanted.parents) if path.exists())

    def run(self, page: Page) -> None:
        """Add a line for every check."""
        with page.check(Gap.CACHE, "file system"):
            self._file_system(page)
        with page.check(Gap.CACHE, "free space"):
            self._space(page)
        remedy = "give a directory that can be written: --cache DIR"
        with page.check(Gap.CACHE, "writing", remedy), tempfile.TemporaryFile(dir=self.folder) as f:
            self._measure(page, f.fileno())

    def _file_system(self, page: Page) -> None:
        kind = mounted(self.folder.resolve(), Path("/proc/mounts").read_text())
        network = kind in _NETWORK
        is_there = self.folder == self.cache.absolute()
        where = "" if is_there else f", where {self.cache} would be made,"
        page.add(
            Finding(
                Gap.CACHE,
                "file system",
                f"{self.folder}{where} is on {kind}",
                Verdict.WEAK if network else Verdict.GOOD,
                "a cache wants a disk of the node, not a network mount" if network else "",
            )
        )

    def _space(self, page: Page) -> None:
        found = os.statvfs(self.folder)
        free = found.f_bavail * found.f_frsize
        enough = free >= _LEAST_FREE_BYTES
        page.add(
            Finding(
                Gap.CACHE,
                "free space",
                f"{format_bytes(free)} of {format_bytes(found.f_blocks * found.f_frsize)}",
                Verdict.GOOD if enough else Verdict.WEAK,
                "" if enough else "a cache gains its share of the data: give it a larger disk",
                float(free),
                "B",
            )
        )

    def _measure(self, page: Page, file: int) -> None:
        piece = os.urandom(_PIECE_BYTES)
        began_s = self.clock.monotonic_s()
        for _ in range(_FILE_BYTES // _PIECE_BYTES):
            os.write(file, piece)
        os.fsync(file)
        self._rate(page, "writing", began_s, 300e6, 50e6, "in sequence, with fsync")
        self._forget(file)
        began_s = self.clock.monotonic_s()
        for start in range(0, _FILE_BYTES, _PIECE_BYTES):
            os.pread(file, _PIECE_BYTES, start)
        self._rate(page, "reading", began_s, 1e9, 200e6, "in sequence, not from memory")
        self._forget(file)
        began_s = self.clock.monotonic_s()
        for number in range(_RANDOM_READS):
            place = hash64(number) % (_FILE_BYTES - _RANDOM_BYTES)
            os.pread(file, _RANDOM_BYTES, place)
        size = _RANDOM_READS * _RANDOM_BYTES
        told = f"{format_bytes(_RANDOM_BYTES)} at random, one at a time"
        self._rate(page, "random reads", began_s, 300e6, 50e6, told, size)
        self._punch(page, file)

    def _forget(self, file: int) -> None:
        """Ask the kernel to read from the disk again; some file systems do not."""
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def _rate(
        self,
        page: Page,
        name: str,
        began_s: float,
        good: float,
        weak: float,
        how: str,
        size_bytes: int = _FILE_BYTES,
    ) -> None:
        rate = size_bytes / max(self.clock.monotonic_s() - began_s, 1e-9)
        page.add(
            Finding(
                Gap.CACHE,
                name,
                f"{format_bytes(rate)}/s {how}",
                graded(rate, good, weak),
                "" if rate >= good else "an NVMe disk of the node is several times faster",
                rate,
                "B/s",
            )
        )

    def _punch(self, page: Page, file: int) -> None:
        """Some caches free bytes inside a file; dstream's does not need it."""
        libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
        done = libc.fallocate(file, _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(_PIECE_BYTES)) == 0
        told = "supported" if done else f"not supported ({os.strerror(ctypes.get_errno())})"
        verdict = Verdict.GOOD if done else Verdict.ABSENT
        page.add(Finding(Gap.CACHE, "hole punching", told, verdict))


def mounted(path: Path, mounts: str) -> str:
    """The kind of file system that ``path`` is on.

    Args:
        path: absolute.
        mounts: the text of ``/proc/mounts``.

    >>> mounted(Path("/a/b"), "dev / ext4 rw 0 0\\ntmp /a tmpfs rw 0 0\\n")
    'tmpfs'
    """
    best, kind = -1, "an unknown file system"
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].encode().decode("unicode_escape")
        if path.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind
