"""What Matroska's Info and Tracks say (RFC 9559 5.1.2 and 5.1.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dstream.media.ebml import children, read_float, read_uint
from dstream.media.mp4_boxes import orientation

EBML_HEAD = 0x1A45DFA3
SEGMENT = 0x18538067
SEEK_HEAD = 0x114D9B74
INFO = 0x1549A966
TRACKS = 0x1654AE6B
CUES = 0x1C53BB6B
CLUSTER = 0x1F43B675
TAGS = 0x1254C367
CHAPTERS = 0x1043A770
ATTACHMENTS = 0x1941A469
TOP_LEVEL = frozenset((SEEK_HEAD, INFO, TRACKS, CUES, CLUSTER, TAGS, CHAPTERS, ATTACHMENTS))

VIDEO_TYPE = 1
_STREAM_TYPES = frozenset((1, 2, 0x11, 0x21))
"""Track types that libav makes streams of: video, audio, subtitles, metadata."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Timing of the whole segment."""

    scale_ns: int
    """Nanoseconds per tick of every timestamp."""
    duration_ticks: float | None


@dataclass(frozen=True, slots=True)
class TrackEntry:
    """One track, as far as reading its blocks needs it."""

    number: int
    kind: int
    codec_id: str
    stream_index: int
    """libav's number for it."""
    default_duration_ns: int | None
    is_encrypted: bool
    stripped: bytes | None
    """Bytes that were cut off the front of every frame; empty without; None if compressed in a
    way that only a decompressor undoes."""
    is_zlib: bool
    rotation_deg: int
    mirrored: bool

    @property
    def is_video(self) -> bool:
        """A video track."""
        return self.kind == VIDEO_TYPE

    @property
    def is_decode_timed(self) -> bool:
        """Blocks tell when to decode, not when to show: tracks made from AVI."""
        return self.codec_id == "V_MS/VFW/FOURCC"

    @property
    def is_plain(self) -> bool:
        """A block's bytes are the frame's bytes."""
        return self.stripped == b""


def parse_info(data: bytes) -> SegmentInfo:
    """From the content of an Info element."""
    scale_ns, duration = 1_000_000, None
    for element in children(data, 0, len(data)):
        content = data[element.body : element.stop]
        if element.kind == 0x2AD7B1:
            scale_ns = read_uint(content) or 1_000_000
        elif element.kind == 0x4489:
            value = read_float(content)
            duration = value if math.isfinite(value) and 0 < value < 2**52 else None
    return SegmentInfo(scale_ns, duration)


def parse_tracks(data: bytes) -> list[TrackEntry]:
    """From the content of a Tracks element; streams are numbered as libav does."""
    result: list[TrackEntry] = []
    streams = 0
    for element in children(data, 0, len(data)):
        if element.kind != 0xAE:
            continue
        entry = _parse_entry(data[element.body : element.stop], streams)
        if entry.kind in _STREAM_TYPES and entry.codec_id:
            streams += 1
            result.append(entry)
    return result


def _parse_entry(data: bytes, stream_index: int) -> TrackEntry:
    number = kind = 0
    codec_id = ""
    default_duration: int | None = None
    encodings = b""
    turn, mirrored = 0, False
    for element in children(data, 0, len(data)):
        content = data[element.body : element.stop]
        if element.kind == 0xD7:
            number = read_uint(content)
        elif element.kind == 0x83:
            kind = read_uint(content)
        elif element.kind == 0x86:
            codec_id = content.rstrip(b"\0").decode("latin-1")
        elif element.kind == 0x23E383:
            default_duration = read_uint(content) or None
        elif element.kind == 0x6D80:
            encodings = content
        elif element.kind == 0xE0:
            turn, mirrored = _orientation(content)
    is_encrypted, stripped, is_zlib = _encodings(encodings)
    return TrackEntry(
        number,
        kind,
        codec_id,
        stream_index,
        default_duration,
        is_encrypted,
        stripped,
        is_zlib,
        turn,
        mirrored,
    )


def _encodings(data: bytes) -> tuple[bool, bytes | None, bool]:
    """(encrypted, stripped header, zlib) of ContentEncodings."""
    stripped: bytes | None = b""
    is_encrypted = is_zlib = False
    for encoding in children(data, 0, len(data)):
        if encoding.kind != 0x6240:
            continue
        kind, scope, algorithm, settings, compressed = 0, 1, 0, b"", False
        for element in children(data, encoding.body, encoding.stop):
            content = data[element.body : element.stop]
            if element.kind == 0x5033:
                kind = read_uint(content)
            elif element.kind == 0x5032:
                scope = read_uint(content)
            elif element.kind == 0x5035:
                is_encrypted = True
            elif element.kind == 0x5034:
                compressed = True
                for part in children(content, 0, len(content)):
                    value = content[part.body : part.stop]
                    if part.kind == 0x4254:
                        algorithm = read_uint(value)
                    elif part.kind == 0x4255:
                        settings = value
        is_encrypted = is_encrypted or kind == 1
        if kind == 0 and compressed and scope & 1:
            is_zlib = algorithm == 0
            stripped = settings if algorithm == 3 else None
    return is_encrypted, stripped, is_zlib


def _orientation(video: bytes) -> tuple[int, bool]:
    """(clockwise degrees, mirrored) from Projection, read as libav does."""
    for projection in children(video, 0, len(video)):
        if projection.kind != 0x7670:
            continue
        kind, yaw, pitch, roll = 0, 0.0, 0.0, 0.0
        for element in children(video, projection.body, projection.stop):
            content = video[element.body : element.stop]
            if element.kind == 0x7671:
                kind = read_uint(content)
            elif element.kind == 0x7673:
                yaw = read_float(content)
            elif element.kind == 0x7674:
                pitch = read_float(content)
            elif element.kind == 0x7675:
                roll = read_float(content)
        if kind == 0 and pitch == 0 and yaw in (0.0, 180.0, -180.0) and math.isfinite(roll):
            angle = math.radians(roll)
            cos, sin = round(math.cos(angle) * 65536), round(math.sin(angle) * 65536)
            flip = -1 if yaw else 1
            return orientation(flip * cos, -flip * sin, sin, cos)
    return 0, False


def tick_of(info: SegmentInfo) -> Fraction:
    """Seconds per tick."""
    return Fraction(info.scale_ns, 1_000_000_000)


def usual_ticks(info: SegmentInfo, track: TrackEntry) -> int:
    """Ticks of a frame, from DefaultDuration; 0 without."""
    return (
        max(1, round(track.default_duration_ns / info.scale_ns))
        if (track.default_duration_ns)
        else 0
    )


def nominal_rate(track: TrackEntry) -> Fraction | None:
    """Frames per second, from DefaultDuration; the usual NTSC rates are made exact."""
    if not track.default_duration_ns:
        return None
    rate = Fraction(1_000_000_000, track.default_duration_ns)
    for exact in (Fraction(round(rate)), Fraction(round(rate * Fraction(1001, 1000)) * 1000, 1001)):
        if exact and abs(exact / rate - 1) < Fraction(1, 1_000_000):
            return exact
    return rate.limit_denominator(1_000_000)
