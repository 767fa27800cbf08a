"""The log of roots: publishing, naming and opening generations."""

from dstream.catalog.backoff import CommitSettings
from dstream.catalog.catalog import Catalog
from dstream.catalog.gc_report import GcReport, GcSettings
from dstream.catalog.history import LogEntry
from dstream.catalog.names import Reference
from dstream.catalog.pins import Pinned
from dstream.catalog.publishing import PublishOptions, Reconcile
from dstream.catalog.sessions import Session
from dstream.catalog.tokens import Token
from dstream.catalog.verify import VerifyReport
from dstream.format.root import Generation, Root

__all__ = [
    "Catalog",
    "CommitSettings",
    "GcReport",
    "GcSettings",
    "Generation",
    "LogEntry",
    "Pinned",
    "PublishOptions",
    "Reconcile",
    "Reference",
    "Root",
    "Session",
    "Token",
    "VerifyReport",
]
