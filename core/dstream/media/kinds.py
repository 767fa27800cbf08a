"""Which files may be videos: by the end of the name, else by the first bytes. Pure."""

from __future__ import annotations

VIDEO_SUFFIXES = frozenset(
    ".3g2 .3gp .asf .avi .cmfv .divx .dv .f4v .flv .ismv .m1v .m2t .m2ts .m2v .m4s .m4v .mkv "
    ".mod .mov .mp4 .mpeg .mpg .mpv .mts .mxf .ogm .ogv .qt .rm .rmvb .tod .ts .vob .webm "
    ".wmv .y4m".split()
)
"""Taken for videos unread; those that turn out otherwise are quarantined with a reason."""

OTHER_SUFFIXES = frozenset(
    ".aac .avif .bin .bmp .bz2 .c .cfg .ckpt .cpp .css .csv .doc .docx .feather .flac .gif .gz "
    ".h .h5 .hdf5 .heic .htm .html .ini .ipynb .jpeg .jpg .js .json .jsonl .lock .log .m3u8 "
    ".m4a .md .mid .mp3 .mpd .ndjson .npy .npz .oga .ogg .onnx .opus .orc .parquet .pb .pdf "
    ".pickle .pkl .png .ppt .pptx .proto .pt .pth .py .rs .rst .safetensors .sh .sha256 .sql "
    ".srt .svg .tar .tex .tfrecord .tgz .tif .tiff .toml .tsv .txt .vtt .wav .weba .webp .wma "
    ".xls .xlsx .xml .xz .yaml .yml .zip .zst".split()
)
"""Never opened to see whether they are videos."""

SNIFF_BYTES = 4096

_BOXES = frozenset((b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"moof"))
_TS_PACKET_BYTES = ((0, 188), (4, 192))
_TS_PACKETS = 5


def suffix_of(name: str) -> str:
    """The last suffix of a file's name in lower case, with its dot; empty without one.

    >>> suffix_of("a.b/run7.actions.JSONL"), suffix_of("a.b/run7"), suffix_of(".hidden")
    ('.jsonl', '', '')
    """
    last = name.rpartition("/")[2]
    stem, dot, end = last.rpartition(".")
    return f".{end.lower()}" if dot and stem else ""


def stem_of(name: str) -> str:
    """The name without its last suffix, folder included.

    >>> stem_of("a.b/run7.left.mp4"), stem_of("a.b/run7")
    ('a.b/run7.left', 'a.b/run7')
    """
    suffix = suffix_of(name)
    return name[: -len(suffix)] if suffix else name


def is_hidden(name: str) -> bool:
    """Whether a part of the path begins with a dot (``..`` is no name at all).

    >>> is_hidden("a/.cache/b.mp4"), is_hidden("a/b.mp4"), is_hidden("../b.mp4")
    (True, False, False)
    """
    return any(part.startswith(".") and part != ".." for part in name.split("/"))


def kind_by_name(name: str) -> bool | None:
    """True for a video, False for anything else, None where only the bytes can tell."""
    suffix = suffix_of(name)
    if suffix in VIDEO_SUFFIXES:
        return True
    return False if suffix in OTHER_SUFFIXES else None


def looks_like_video(head: bytes) -> bool:
    """Whether a file that begins with ``head`` (``SNIFF_BYTES`` or the whole) may be a video.

    >>> looks_like_video(bytes.fromhex("00000018") + b"ftypisom"), looks_like_video(b"{}")
    (True, False)
    """
    if head[4:8] in _BOXES and not 2 <= int.from_bytes(head[:4], "big") < 8:
        return True
    if head[:4] in (b"\x1a\x45\xdf\xa3", b"\x00\x00\x01\xba") or head[:4] == b"FLV\x01":
        return True
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return True
    return any(_is_transport_stream(head, first, step) for first, step in _TS_PACKET_BYTES)


def _is_transport_stream(head: bytes, first: int, step: int) -> bool:
    marks = head[first : first + step * _TS_PACKETS : step]
    return len(marks) == _TS_PACKETS and set(marks) == {0x47}
