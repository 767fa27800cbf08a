"""The files that ``dstream bench`` writes besides its output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from dstream.errors import InvalidInputError, StorageError

if TYPE_CHECKING:
    from dstream.diagnose.bench.document import BenchDocument
    from dstream.diagnose.bench.recording import Recording
    from dstream_cli.render import Output

_MAX_SPANS = 200_000
"""Of a trace: about 80 MB of memory, and a file of 40 MB."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where to; empty for nowhere."""

    html: str
    trace: str

    @property
    def max_spans(self) -> int:
        """How many spans are to be kept."""
        return _MAX_SPANS if self.trace else 0

    def check(self) -> None:
        """Find out before the run whether the files can be written after it.

        Raises:
            InvalidInputError: one cannot.
        """
        for option, name in (("--html", self.html), ("--trace", self.trace)):
            path = Path(name)
            try:
                if name and path.exists():
                    path.open("a").close()
                elif name:
                    path.open("x").close()
                    path.unlink()  # a run that is interrupted leaves nothing
            except OSError as error:
                raise InvalidInputError(
                    f"{option} {name}: {error.strerror or error}; name a file in a folder that "
                    "can be written",
                    path=name,
                ) from error

    def write(self, out: Output, document: BenchDocument, recording: Recording) -> None:
        """Write the files.

        Raises:
            StorageError: one cannot be written after all.
        """
        if self.html:
            from dstream.diagnose.bench.page import page

            with _written("--html", self.html) as file:
                file.write(page(document))
            out.message(f"the report is in {self.html}")
        if self.trace:
            from dstream.diagnose.bench.trace import write_trace

            spans, dropped = recording.spans.spans, recording.spans.dropped
            title = f"dstream bench {document.target}"
            with _written("--trace", self.trace) as file:
                write_trace(file, spans, title=title, dropped=dropped)
            left_out = f"; {dropped:,} later ones were dropped" if dropped else ""
            out.message(f"the trace of {len(spans):,} spans is in {self.trace}{left_out}")


@contextmanager
def _written(option: str, name: str) -> Iterator[TextIO]:
    """The file, open for writing; its errors name the option."""
    try:
        with Path(name).open("w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise StorageError(
            f"{option} {name}: {error.strerror or error}; it is not complete", path=name
        ) from error
