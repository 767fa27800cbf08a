"""Where frameworks look for a checkpoint, so that a fetched one is found as their own. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dstream.catalog import Generation
from dstream.errors import InvalidInputError

LAYOUTS: dict[str, str] = {
    "plain": "",
    "checkpoint-step": "checkpoint-{step}",
    "transformers": "checkpoint-{step}",
    "accelerate": "checkpoints/checkpoint_{step}",
    "torchtitan": "step-{step}",
    "lightning": "last.ckpt",
}
"""Layout -> the checkpoint's folder below DEST; ``plain`` is DEST itself."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint goes."""

    root: Path
    """The folder in which it is assembled, under a hidden name: never one in which a framework
    takes every entry for a checkpoint."""
    relative: str
    """The checkpoint's folder below ``root``."""

    @property
    def path(self) -> Path:
        """The checkpoint's folder."""
        return self.root / self.relative


def place_for(layout: str, dest: str | os.PathLike[str], generation: Generation) -> Place:
    """Where ``generation`` goes in this layout.

    Raises:
        InvalidInputError: an unknown layout, no usable destination, or a layout by step of a
            generation without one.
    """
    pattern = LAYOUTS.get(layout)
    if pattern is None:
        raise InvalidInputError(
            f"unknown layout {layout!r}; there are {', '.join(LAYOUTS)}", layout=layout
        )
    text = os.fspath(dest)
    if not text or "\0" in text:
        raise InvalidInputError(f"unusable destination {text!r}")
    path = Path(os.path.abspath(os.path.expanduser(text)))
    if not pattern:
        if not path.name:
            raise InvalidInputError(f"{path} cannot be the folder of a checkpoint", path=str(path))
        return Place(path.parent, path.name)
    if "{step}" in pattern and generation.step is None:
        raise InvalidInputError(
            f"{generation.label} has no step, which layout {layout} is made of; fetch it with "
            "layout plain, or publish it with a step",
            layout=layout,
        )
    return Place(path, pattern.format(step=generation.step))
