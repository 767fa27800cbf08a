"""From raw videos to one generation of a dataset: scan, probe, pack or reference, publish."""

from dstream.ingest.estimate import Estimate, LayoutEstimate, Prices, dry_run
from dstream.ingest.run import finish_ingest, ingest
from dstream.ingest.scan import SkipLog
from dstream.ingest.settings import (
    IngestResult,
    IngestSettings,
    Layout,
    Progress,
    Quarantined,
    Share,
)

__all__ = [
    "Estimate",
    "IngestResult",
    "IngestSettings",
    "Layout",
    "LayoutEstimate",
    "Prices",
    "Progress",
    "Quarantined",
    "Share",
    "SkipLog",
    "dry_run",
    "finish_ingest",
    "ingest",
]
