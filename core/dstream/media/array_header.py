"""The headers of ``.npy`` and safetensors files: which arrays lie where. Pure, nothing is run.

Formats: numpy's NEP 1 (``numpy.lib.format``), and the README of huggingface/safetensors. Both
are read by patterns and limits of our own: no ``eval``, no pickle.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

from dstream.errors import MediaError, MediaReason
from dstream.media.row_form import RowForm

NPY_MAGIC = b"\x93NUMPY"
PREFIX_BYTES = 12
"""Enough of either kind's beginning to know how long its header is."""

MAX_NPY_HEADER_BYTES = 10_000
"""numpy's own limit (``max_header_size``)."""
MAX_SAFETENSORS_HEADER_BYTES = 16 << 20
"""The format allows 100 MB; so much describes some 100,000 tensors."""
MAX_TENSORS = 1024
"""In one file. A checkpoint of more is better kept by ``dstream.checkpoint``."""
MAX_NAME_CHARS = 256

_ENTRY = re.compile(
    r"\s*'(?P<name>descr|fortran_order|shape)'\s*:\s*"
    r"(?:'(?P<text>[^']*)'|(?P<flag>True|False)|\((?P<numbers>(?:\s*\d+L?\s*,)*(?:\s*\d+L?)?\s*)\)|(?P<fields>\[.*\]))"
    r"\s*(?P<comma>,?)",
    re.DOTALL,
)
_DESCR = re.compile(r"([<>|=]?)([biufc])(\d{1,2})")
_NPY_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_NPY_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
_SAFETENSORS_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64",
    "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of a file, C order."""

    name: str
    form: RowForm
    """Of the whole array."""
    offset_bytes: int
    """Where its first element is in the file."""


def header_bytes(prefix: bytes, size_bytes: int) -> int:
    """Length of the header, from a file's first ``PREFIX_BYTES``; data begin after it.

    Raises:
        MediaError: it is no such file, or its header is longer than the file or the limit.
    """
    if prefix.startswith(NPY_MAGIC):
        if len(prefix) < PREFIX_BYTES or prefix[6] not in (1, 2, 3):
            _bad(f"an .npy file of version {prefix[6:7].hex() or 'none'}, known are 1 to 3")
        start = 10 if prefix[6] == 1 else 12
        length, limit = int.from_bytes(prefix[8:start], "little"), MAX_NPY_HEADER_BYTES
    else:
        start, limit = 8, MAX_SAFETENSORS_HEADER_BYTES
        length = int.from_bytes(prefix[:8], "little")
        if len(prefix) < PREFIX_BYTES or prefix[8:9] != b"{":
            _bad("neither an .npy file nor safetensors: it begins like neither", not_media=True)
    if length > limit:
        _bad(f"its header claims {length} bytes, the limit is {limit}")
    if start + length > size_bytes:
        _bad(f"its header claims {length} bytes of a file of {size_bytes}", truncated=True)
    return start + length


def stored_arrays(header: bytes, size_bytes: int) -> list[StoredArray]:
    """The arrays of a file, by name.

    Args:
        header: the whole header, as long as :func:`header_bytes` says.
        size_bytes: of the file.

    Raises:
        MediaError: the header cannot be read, contradicts the file's size, or names what cannot
            be streamed (Python objects, fields, Fortran order, elements below one byte).
    """
    if header.startswith(NPY_MAGIC):
        return [_npy_array(header, size_bytes)]
    return _tensors(header, size_bytes)


def _npy_array(header: bytes, size_bytes: int) -> StoredArray:
    start = 10 if header[6] == 1 else 12
    try:
        text = header[start:].decode("utf-8" if header[6] == 3 else "latin-1").strip()
    except UnicodeDecodeError:
        _bad("its header is no text")
    found = _npy_fields(text)
    if found["descr"]["fields"] is not None:
        _bad("it holds records of several fields; store one array for each field")
    form = _npy_type(found["descr"]["text"] or "")
    if found["fortran_order"]["flag"] != "False":
        _bad("it is in Fortran order, where rows lie scattered; store numpy.ascontiguousarray(it)")
    numbers = (found["shape"]["numbers"] or "").replace("L", "").split(",")
    shape = _shape([int(n) if len(n.strip()) < 16 else -1 for n in numbers if n.strip()])
    array = StoredArray("array", RowForm(form.dtype, shape, form.big_endian), len(header))
    _check_size(len(header) + array.form.size_bytes, size_bytes)
    return array


def _npy_fields(text: str) -> dict[str, dict[str, str | None]]:
    """The three entries of a header, each exactly once and nothing else."""
    found: dict[str, dict[str, str | None]] = {}
    at, stop = 1, len(text) - 1
    if text[:1] != "{" or text[-1:] != "}":
        _bad("its header is no dictionary")
    while text[at:stop].strip():
        entry = _ENTRY.match(text, at, stop)
        if entry is None or entry["name"] in found:
            _bad(f"its header cannot be read at {text[at : at + 40]!r}")
        found[entry["name"]] = entry.groupdict()
        at = entry.end()
        if not entry["comma"] and text[at:stop].strip():
            _bad(f"its header cannot be read at {text[at : at + 40]!r}")
    wanted = {"descr": ("text", "fields"), "fortran_order": ("flag",), "shape": ("numbers",)}
    for name, kinds in wanted.items():
        if name not in found or all(found[name][kind] is None for kind in kinds):
            _bad(f"its header has no usable {name!r}")
    return found


def _npy_type(descr: str) -> RowForm:
    if "O" in descr:
        _bad("it holds Python objects: reading them would unpickle what the file says, so it is "
             "refused; store numbers")  # fmt: skip
    found = _DESCR.fullmatch(descr)
    if found is None or int(found[3]) not in _NPY_SIZES[found[2]]:
        hint = "; store bfloat16 and float8 as safetensors" if "V" in descr else ""
        _bad(f"its elements are of the type {descr!r:.40}, which is no plain number{hint}")
    size = int(found[3])
    name = "bool" if found[2] == "b" else f"{_NPY_KINDS[found[2]]}{8 * size}"
    return RowForm(name, (), found[1] == ">" and size > 1)


def _tensors(header: bytes, size_bytes: int) -> list[StoredArray]:
    try:
        document = json.loads(header[8:].decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        _bad(f"its header is no JSON that can be used: {str(error)[:200]}")
    if not isinstance(document, dict):
        _bad("its header is no JSON object")
    document.pop("__metadata__", None)
    if len(document) > MAX_TENSORS:
        _bad(f"it holds {len(document)} tensors, the limit is {MAX_TENSORS}")
    arrays = [_tensor(name, entry, len(header)) for name, entry in document.items()]
    stop = len(header)
    for array in sorted(arrays, key=lambda one: (one.offset_bytes, one.form.size_bytes)):
        if array.offset_bytes != stop:
            _bad(f"tensor {array.name!r} begins at {array.offset_bytes}, expected {stop}: tensors "
                 "must lie one after another")  # fmt: skip
        stop += array.form.size_bytes
    _check_size(stop, size_bytes)
    return sorted(arrays, key=lambda one: one.name)


def _tensor(name: str, entry: Any, start_bytes: int) -> StoredArray:
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        _bad(f"a tensor's name cannot be used: {name!r:.80}")
    if not isinstance(entry, dict):
        _bad(f"tensor {name!r} is not described by an object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _SAFETENSORS_TYPES:
        _bad(f"tensor {name!r} is of the type {dtype!r:.40}; known are "
             f"{', '.join(_SAFETENSORS_TYPES)}")  # fmt: skip
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        _bad(f"tensor {name!r} has no usable shape or place")
    form = RowForm(_SAFETENSORS_TYPES[dtype], _shape(shape))
    begin, end = offsets
    if not all(type(offset) is int for offset in offsets) or end - begin != form.size_bytes:
        _bad(f"tensor {name!r}: {form} takes {form.size_bytes} bytes, its place is {offsets!r:.60}")
    return StoredArray(name, form, start_bytes + begin)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _shape(lengths: list[Any]) -> tuple[int, ...]:
    if len(lengths) > 64 or not all(type(n) is int and 0 <= n < 10**15 for n in lengths):
        _bad(f"its shape {lengths!r:.80} cannot be used")
    if prod(length or 1 for length in lengths) >= 1 << 63:
        _bad(f"its shape {lengths!r:.80} has more elements than any file holds")
    return tuple(lengths)


def _check_size(expected: int, size_bytes: int) -> None:
    if expected > size_bytes:
        _bad(f"it has {size_bytes} bytes, its header promises {expected}", truncated=True)
    if expected < size_bytes:
        _bad(f"{size_bytes - expected} bytes are left over after what its header describes")


def _bad(what: str, *, truncated: bool = False, not_media: bool = False) -> NoReturn:
    reason = MediaReason.TRUNCATED if truncated else MediaReason.BAD_ARRAY
    raise MediaError(what, reason=MediaReason.NOT_MEDIA if not_media else reason)
