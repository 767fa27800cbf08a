"""Batches for torch's DataLoader and torchdata's StatefulDataLoader. Importing this needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dstream.errors import InvalidInputError
from dstream.loader.batch import Batch
from dstream.loader.cursor import ALL_STEPS, Share
from dstream.loader.settings import default_workers

if TYPE_CHECKING:
    from dstream.loader.clips import Clips
    from dstream.loader.loader import Loader

try:
    _torch: Any = import_module("torch")
except ModuleNotFoundError as error:
    raise InvalidInputError(
        "clips.iterable() is for torch's DataLoader, and torch is not installed; without it, "
        "iterate over clips.loader()"
    ) from error

_data: Any = import_module("torch.utils.data")
_IterableDataset: Any = _data.IterableDataset


class ClipsDataset(_IterableDataset):  # type: ignore[misc]
    """Batches in the plan's order, made by as many workers as a DataLoader has.

    Give it to ``DataLoader(dataset, batch_size=None, num_workers=N)``: it yields whole batches.
    Worker w makes every N-th batch of the rank, from the w-th on; the DataLoader takes from its
    workers in turn, so the batches come in the order of ``clips.loader()``, whatever N is.

    Each ``for`` loop begins with the epoch that :meth:`set_epoch` said last, 0 by default.

    Args:
        clips: what to read.
        batch_size: clips in a batch of one rank.
        options: those of :meth:`Clips.loader`. Ranks are found here, in the process that makes
            the dataset, and not in its workers. ``workers`` are decoding threads of each worker
            process; by default they share the CPUs.

    Raises:
        InvalidInputError: as :meth:`Clips.loader`, or ``device`` or ``decoder``
            was given.
    """

    def __init__(self, clips: Clips, batch_size: int, options: Mapping[str, Any]) -> None:
        if options.get("device") not in (None, "cpu"):
            raise InvalidInputError(
                f"device={options['device']!r}: worker processes leave the GPU alone; move batches "
                "where they arrive, with batch.to(device, non_blocking=True) and "
                "DataLoader(pin_memory=True), or iterate over clips.loader(device=...)"
            )
        if options.get("decoder") not in (None, "cpu"):
            raise InvalidInputError(
                f"decoder={options['decoder']!r}: worker processes leave the GPU alone; iterate "
                "over clips.loader(decoder=...)"
            )
        loader = clips.loader(batch_size, **options)
        self._clips, self._batch_size = clips, batch_size
        ranks = loader.ranks
        self._options = {**options, "rank": ranks.rank, "world_size": ranks.world_size}
        # Shared with workers that live on from loop to loop.
        self._epoch = _torch.zeros((), dtype=_torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next loop begins with. Call it before each, as with a sampler."""
        if epoch < 0:
            raise InvalidInputError(f"epoch must not be negative, got {epoch}")
        self._epoch.fill_(epoch)

    def __iter__(self) -> BatchIterator:
        info: Any = _data.get_worker_info()
        share = ALL_STEPS if info is None else Share(info.id, info.num_workers)
        return BatchIterator(self._loader(share))

    def __len__(self) -> int:
        """Batches of the rank in the loop that begins with the set epoch, over all workers."""
        return self._loader(ALL_STEPS).batches_left()

    def _loader(self, share: Share) -> Loader:
        options = dict(self._options)
        if options.get("workers") is None:
            options["workers"] = max(1, default_workers() // share.count)
        loader = self._clips.loader(self._batch_size, **options)
        loader.begin_at(int(self._epoch), share)
        return loader


class BatchIterator:
    """One loop of one worker. StatefulDataLoader asks it where it stands.

    The state is that of one worker of so many: it is refused by a loader with another
    ``num_workers``, as torchdata refuses it.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Batch:
        return next(self._loader)

    def state_dict(self) -> dict[str, object]:
        """See :meth:`Loader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """See :meth:`Loader.load_state_dict`."""
        self._loader.load_state_dict(state)
