"""What is used of torch. Torch is optional: only who imports this module needs it.

Everything is of type ``Any``, so that type checks give the same result with and without torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from dstream.errors import InvalidInputError

try:
    torch: Any = import_module("torch")
except ModuleNotFoundError as error:
    raise InvalidInputError(
        "saving and loading state needs torch; install it, or publish and fetch folders instead"
    ) from error

dist: Any = import_module("torch.distributed")
dcp: Any = import_module("torch.distributed.checkpoint")
_metadata: Any = import_module("torch.distributed.checkpoint.metadata")
_filesystem: Any = import_module("torch.distributed.checkpoint.filesystem")
_planner: Any = import_module("torch.distributed.checkpoint.planner")
_storage: Any = import_module("torch.distributed.checkpoint.storage")
_shard: Any = import_module("torch.distributed._shard._utils")

CheckpointException = import_module("torch.distributed.checkpoint.api").CheckpointException
Metadata = _metadata.Metadata
MetadataIndex = _metadata.MetadataIndex
StorageMeta = _metadata.StorageMeta
TensorProperties = _metadata.TensorProperties
TensorStorageMetadata = _metadata.TensorStorageMetadata
BytesStorageMetadata = _metadata.BytesStorageMetadata
ChunkStorageMetadata = _metadata.ChunkStorageMetadata
LoadItemType = _planner.LoadItemType
WriteItemType = _planner.WriteItemType
WriteResult = _storage.WriteResult
WriterBase = _storage.StorageWriter
ReaderBase = _storage.StorageReader
StorageInfo = _filesystem._StorageInfo
"""Where torch's own reader of folders finds an item."""

FakeTensorMode: Any = import_module("torch._subclasses.fake_tensor").FakeTensorMode
"""Under it ``torch.load`` gives tensors without their bytes, and where these are."""

METADATA_NAME = ".metadata"
DCP_VERSION = "1.0.0"
narrow = _shard.narrow_tensor_by_index


def _let_group_end() -> None:
    """Take back the default group that torch's functions hold since the imports above.

    ``torch.distributed.nn.functional``, which checkpoints import, has ``group=group.WORLD`` as
    default arguments: None where it is imported before there is a group, as most programs do. The
    group of a program that imports it later never ends. The threads of gloo then outlive
    ``destroy_process_group()``, and one that lets go of a tensor while the interpreter takes itself
    apart aborts the process.
    """
    functional = sys.modules.get("torch.distributed.nn.functional")
    for function in list(vars(functional).values()) if functional is not None else ():
        defaults = getattr(function, "__defaults__", None) or ()
        if any(isinstance(value, dist.ProcessGroup) for value in defaults):
            function.__defaults__ = tuple(
                None if isinstance(value, dist.ProcessGroup) else value for value in defaults
            )


if dist.is_available():
    _let_group_end()


def done_future(result: object) -> Any:
    """A torch future that holds ``result`` already."""
    future: Any = torch.futures.Future()
    future.set_result(result)
    return future


def is_distributed() -> bool:
    """Whether this process belongs to a group."""
    return bool(dist.is_available() and dist.is_initialized())
