"""The metadata of a distributed checkpoint as JSON, beside the pickle that torch writes.

A pickle runs whatever it says. Torch keeps the list of tensors, their chunks and their places in
one; so that nothing stored is ever unpickled, the same list is stored as JSON and only that is
read. The pickle is written for torch's own reader of fetched folders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dstream.checkpoint.torch_api import (
    DCP_VERSION,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
    torch,
)
from dstream.errors import CorruptDataError, FormatVersionError, InvalidInputError

TWIN_NAME = ".metadata.json"
VERSION = 1
MAX_TWIN_BYTES = 512 << 20
"""Size beyond which it is taken for damage."""

_MEMORY_FORMATS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "preserve": torch.preserve_format,
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Where one item is: bytes ``[offset, offset + length)`` of a file of the checkpoint."""

    path: str
    offset_bytes: int
    size_bytes: int
    xxh3: str
    """Of these bytes, 16 hex digits."""


def encode_twin(metadata: Any, pieces: Mapping[Any, Piece]) -> bytes:
    """The JSON form of torch's metadata.

    Args:
        metadata: what the planner made.
        pieces: where each item is, by its index.

    Raises:
        InvalidInputError: a planner keeps something that JSON cannot hold.
    """
    document = {
        "version": VERSION,
        "min_reader": VERSION,
        "state": {name: _entry(entry) for name, entry in metadata.state_dict_metadata.items()},
        "paths": _paths(metadata.planner_data),
        "storage": [
            [
                index.fqn,
                None if index.offset is None else list(index.offset),
                piece.path,
                piece.offset_bytes,
                piece.size_bytes,
                piece.xxh3,
            ]
            for index, piece in pieces.items()
        ],
    }
    try:
        return json.dumps(document, sort_keys=True, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"the planner's metadata cannot be stored as JSON: {error}"
        ) from error


def decode_twin(data: bytes, where: str) -> Any:
    """Torch's metadata, with :class:`Piece` as ``storage_data``.

    Raises:
        CorruptDataError: damaged, or not what :func:`encode_twin` writes.
        FormatVersionError: written by a newer dstream.
    """
    try:
        document = json.loads(data)
        if int(document["min_reader"]) > VERSION:
            raise FormatVersionError(
                f"{where}: needs a reader of format {document['min_reader']}, this dstream reads "
                f"up to {VERSION}: update it"
            )
        paths = document["paths"]
        return Metadata(
            state_dict_metadata={
                str(name): _entry_from(entry) for name, entry in document["state"].items()
            },
            planner_data=None if paths is None else _paths_from(paths),
            storage_data={
                _index(row[0], row[1]): Piece(
                    _text(row[2]), _count(row[3]), _count(row[4]), _text(row[5])
                )
                for row in document["storage"]
            },
            version=DCP_VERSION,
        )
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"{where}: cannot be read: {error!r}"[:500], where=where) from error


def _entry(entry: Any) -> object:
    if isinstance(entry, BytesStorageMetadata):
        return None
    properties = entry.properties
    formats = {value: name for name, value in _MEMORY_FORMATS.items()}
    return {
        "dtype": str(properties.dtype).removeprefix("torch."),
        "requires_grad": bool(properties.requires_grad),
        "memory_format": formats[properties.memory_format],
        "size": list(entry.size),
        "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in entry.chunks],
    }


def _entry_from(entry: Any) -> Any:
    if entry is None:
        return BytesStorageMetadata()
    dtype = getattr(torch, _text(entry["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype {entry['dtype']!r:.40}")
    return TensorStorageMetadata(
        properties=TensorProperties(
            dtype=dtype,
            requires_grad=bool(entry["requires_grad"]),
            memory_format=_MEMORY_FORMATS[entry["memory_format"]],
        ),
        size=_size(entry["size"]),
        chunks=[
            ChunkStorageMetadata(offsets=_size(chunk[0]), sizes=_size(chunk[1]))
            for chunk in entry["chunks"]
        ],
    )


def _paths(planner_data: Any) -> object:
    """What the standard planner keeps: flattened name -> path of keys and numbers."""
    if planner_data is None:
        return None
    if not isinstance(planner_data, Mapping) or not all(
        isinstance(path, Sequence) and all(type(key) in (str, int) for key in path)
        for path in planner_data.values()
    ):
        raise InvalidInputError(
            f"the planner keeps data of its own ({type(planner_data).__name__}), which cannot be "
            "stored: use torch's DefaultSavePlanner, or a planner that keeps none"
        )
    return {name: list(path) for name, path in planner_data.items()}


def _paths_from(paths: Any) -> dict[str, tuple[str | int, ...]]:
    return {
        _text(name): tuple(key if type(key) is int else _text(key) for key in path)
        for name, path in paths.items()
    }


def _index(name: Any, offset: Any) -> Any:
    return MetadataIndex(_text(name), None if offset is None else _size(offset))


def _size(values: Any) -> Any:
    return torch.Size([_count(value) for value in values])


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is no count")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r:.40} is no text")
    return value
