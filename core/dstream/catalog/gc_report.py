"""What a collection is asked to do, and what it says that it did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dstream.errors import InvalidInputError

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

MAX_LISTED = 1000
"""Most deletions that a report names one by one."""


@dataclass(frozen=True, slots=True)
class GcSettings:
    """What to keep, and how long to wait before bytes go. All by the store's clock."""

    keep_last: int | None = None
    """Keep the newest so many generations of each name, and give up the others."""
    keep_within_s: float | None = None
    """Keep what was published within this time, and give up the others."""
    grace_s: float = DAY_S
    """Objects of condemned generations stay so long, for readers that hold no pin."""
    session_grace_s: float = 7 * DAY_S
    """Uploads that began longer ago and are not committed are given up."""
    key_age_s: float = 90 * DAY_S
    """Idempotency keys are remembered so long."""
    log_age_s: float = 100 * DAY_S
    """Roots of the log that nobody pinned are cleared when they are older."""
    dry_run: bool = False
    """Change nothing; tell what would be done."""

    def __post_init__(self) -> None:
        if self.keep_last is not None and self.keep_last < 1:
            raise InvalidInputError(f"keep_last is at least 1, got {self.keep_last}")
        for name in ("keep_within_s", "grace_s", "session_grace_s", "key_age_s", "log_age_s"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidInputError(f"{name} cannot be negative, got {value}")


@dataclass(frozen=True, slots=True)
class Item:
    """One object, generation, pin or upload, and why it goes or stays."""

    what: str
    """``generation``, ``pin``, ``object``, ``orphan``, ``manifest``, ``journal``,
    ``catalog-shard``, ``root`` or ``upload``."""
    name: str
    reason: str
    size_bytes: int = 0


@dataclass(slots=True)
class GcReport:
    """What one collection did, or would do."""

    dry_run: bool = False
    upload_floor: int = 0
    """The fence: sessions that began before this log number are over."""
    condemned: list[Item] = field(default_factory=list)
    """Generations that were given up now; their bytes go after the grace."""
    kept: Counter[str] = field(default_factory=Counter)
    """Generations that stay, by reason."""
    waiting: int = 0
    """Generations given up earlier or now whose bytes may not go yet."""
    expired_pins: list[str] = field(default_factory=list)
    swept: list[str] = field(default_factory=list)
    """Generations whose bytes are gone."""
    deleted: Counter[str] = field(default_factory=Counter)
    """Deletions by what they were."""
    deleted_bytes: int = 0
    items: list[Item] = field(default_factory=list)
    """The first deletions one by one."""
    failed: dict[str, str] = field(default_factory=dict)
    """Key -> why it could not be deleted; the next collection tries again."""

    def note(self, item: Item) -> None:
        """Count one deletion."""
        self.deleted[item.what] += 1
        self.deleted_bytes += item.size_bytes
        if len(self.items) < MAX_LISTED:
            self.items.append(item)
