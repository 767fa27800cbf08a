"""Checkpoints as generations: published whole, fetched whole, saved and loaded by torch."""

from __future__ import annotations

from dstream.checkpoint.fetch import Fetched, fetch
from dstream.checkpoint.layout import LAYOUTS
from dstream.checkpoint.progress import CopyProgress
from dstream.checkpoint.publish import Published, publish

__all__ = ["LAYOUTS", "CopyProgress", "Fetched", "Published", "fetch", "publish"]
