"""Which order a loader goes through: what its settings and its data make of it."""

from __future__ import annotations

from dstream.errors import InvalidInputError
from dstream.loader.partitions import partition_settings
from dstream.loader.plan import Order
from dstream.loader.reader import ClipReader
from dstream.loader.settings import LoaderSettings


def order_of(reader: ClipReader, settings: LoaderSettings) -> Order:
    """The order of a loader's slots.

    Raises:
        InvalidInputError: there is no slot.
    """
    window, slots = reader.settings.window, reader.slots
    if slots.total == 0:
        raise InvalidInputError(
            f"{reader.source.name}: none of its {len(reader.source)} samples is long enough for a "
            f"clip of {window}",
            samples=len(reader.source),
        )
    together = partition_settings(
        slots.total,
        is_affine=settings.shuffle == "affine",
        partitions=settings.partitions,
        window_clips=settings.window_clips,
        clips_per_gop=settings.clips_per_gop,
    )
    clip = reader.settings
    return Order.of(slots, clip.seed, clip.sampling, settings.shuffle, together)
