"""From raw videos to one generation of a dataset: scan, probe, pack or reference, publish."""

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
    "IngestResult",
    "IngestSettings",
    "Layout",
    "Progress",
    "Quarantined",
    "Share",
    "SkipLog",
    "finish_ingest",
    "ingest",
]
