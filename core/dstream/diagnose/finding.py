"""What a check found, and what that means for streaming video."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum


class Gap(StrEnum):
    """The four gaps between a bucket and a tensor, and the machine between them."""

    STORE = "store -> host"
    CACHE = "cache disk"
    GPU = "host -> GPU"
    FRAMES = "bytes -> frames"
    MACHINE = "machine"


class Verdict(StrEnum):
    """What a finding means."""

    GOOD = "good"
    WEAK = "weak"
    """It works, and will hold a run up."""
    BAD = "bad"
    """It does not work, or not safely."""
    ABSENT = "absent"
    """It is not on this machine; dstream does without it."""
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a doctor's page."""

    gap: Gap
    check: str
    found: str
    verdict: Verdict
    remedy: str = ""
    value: float | None = None
    """The measured figure, in ``unit``."""
    unit: str = ""


def graded(value: float, good: float, weak: float) -> Verdict:
    """A verdict by two bounds; where ``good < weak`` less is better.

    >>> graded(5, 10, 50), graded(20, 10, 50), graded(400, 100, 10)
    (<Verdict.GOOD: 'good'>, <Verdict.WEAK: 'weak'>, <Verdict.GOOD: 'good'>)
    """
    if good < weak:
        return Verdict.GOOD if value <= good else Verdict.WEAK if value <= weak else Verdict.BAD
    return Verdict.GOOD if value >= good else Verdict.WEAK if value >= weak else Verdict.BAD


class Page:
    """Collects findings; a check that fails is a finding too."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def add(self, finding: Finding) -> None:
        """Add one line."""
        self.findings.append(finding)

    @contextmanager
    def check(self, gap: Gap, name: str, remedy: str = "") -> Iterator[None]:
        """Run a check in the block; what it raises becomes a line that says so.

        A page with one check missing is worth more than a traceback: everything is caught.
        """
        try:
            yield
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if isinstance(error, OSError) and error.strerror:
                text = ": ".join(filter(None, (str(error.filename or ""), error.strerror)))
            self.add(Finding(gap, name, text, Verdict.UNKNOWN, remedy))
