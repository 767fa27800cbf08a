"""From a generation or a raw source to batches of tensors.

The way of a clip: ``plan`` says which one comes next, ``generation`` or ``raw`` gives its sample
and packet table, ``reader`` places it, fetches its bytes and decodes it, ``pipeline`` does so in
threads, ``pending`` collects a batch, and ``loader`` hands it over and reports.
"""

from dstream.loader.batch import Batch, Clip
from dstream.loader.clips import Clips
from dstream.loader.collate import collate
from dstream.loader.loader import Loader
from dstream.loader.mixed_clips import Mixture, mix
from dstream.loader.report import LoaderReport, RanksReport

__all__ = [
    "Batch",
    "Clip",
    "Clips",
    "Loader",
    "LoaderReport",
    "Mixture",
    "RanksReport",
    "collate",
    "mix",
]
