"""The one output sink: results on stdout, everything else on stderr.

Verbs hand over values: :class:`Facts`, :class:`Table`, plain sentences, and the document that
``--json`` prints instead. Only this module knows of terminals, widths and colours.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from dstream.errors import DstreamError, StorageError
from dstream_cli.plain import plain, printable

WIDTH = 80
"""Columns of a table where no terminal says otherwise."""


_GAP = 2
"""Blanks between two columns of a table."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, one a line."""

    pairs: Sequence[tuple[str, object]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column titles. A title that starts with ``>`` is set to the right."""

    titles: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line for scripts: never wrapped."""

    text: str


Part = Facts | Table | Line | str


@dataclass(slots=True)
class Output:
    """Where a verb's results, messages and errors go."""

    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    stderr: TextIO = field(default_factory=lambda: sys.stderr)
    json: bool = False
    """Results and errors are JSON; messages are left out."""
    quiet: bool = False
    """No messages and no progress; results and errors stay."""
    debug: bool = False
    """Errors come with a traceback."""

    def result(self, document: object, parts: Sequence[Part]) -> None:
        """Print what the verb found: ``document`` with ``--json``, else ``parts``.

        Raises:
            StorageError: stdout cannot be written.
            BrokenPipeError: nobody reads it any more.
        """
        with self.printing():
            if self.json:
                indent = 2 if self.stdout.isatty() else None
                text = json.dumps(plain(document), indent=indent, allow_nan=False)
                print(text, file=self.stdout)
            else:
                for number, part in enumerate(parts):
                    self._show(part, first=number == 0)

    @contextmanager
    def printing(self) -> Iterator[None]:
        """Flush stdout at the end of the block, and translate its errors."""
        try:
            yield
            self.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.filename is not None:
                raise  # of a file, which is not stdout
            raise StorageError(
                f"the result cannot be written to standard output: {error.strerror or error}",
                errno=error.errno,
            ) from error

    def message(self, text: str) -> None:
        """Tell a person something that is not a result."""
        if not (self.json or self.quiet):
            print(printable(text), file=self.stderr, flush=True)

    def error(self, error: BaseException, exit_code: int, hint: str = "") -> None:
        """Report why the verb failed."""
        if self.json:
            print(json.dumps(error_document(error, exit_code)), file=self.stderr, flush=True)
            return
        text = str(error) or type(error).__name__
        print(f"dstream: {printable(text)}", file=self.stderr)
        if hint:
            print(hint, file=self.stderr)
        self.stderr.flush()

    def _show(self, part: Part, *, first: bool) -> None:
        if not first:
            print(file=self.stdout)
        if isinstance(part, Line):
            print(printable(part.text, lines=False), file=self.stdout)
            return
        if isinstance(part, str):
            for line in part.split("\n"):
                print(textwrap.fill(printable(line), self._width()), file=self.stdout)
            return
        if part.title:
            print(printable(part.title, lines=False), file=self.stdout)
        if isinstance(part, Facts):
            self._grid(["", ""], part.pairs, header=False)
        elif self._width() < WIDTH and narrowest(part) > self._width():
            self._records(part)
        else:
            self._grid(part.titles, part.rows, header=True)

    def _records(self, table: Table) -> None:
        """Each row by itself, where a table would break words and numbers."""
        titles = [title.lstrip(">") for title in table.titles]
        for number, row in enumerate(table.rows):
            if number:
                print(file=self.stdout)
            told = [(title, cell) for title, cell in zip(titles, row, strict=True) if cell != ""]
            self._grid(["", ""], told, header=False)

    def _width(self) -> int:
        if not self.stdout.isatty():
            return WIDTH
        return max(40, shutil.get_terminal_size((WIDTH, 24)).columns)

    def _grid(
        self, titles: Sequence[str], rows: Sequence[Sequence[object]], *, header: bool
    ) -> None:
        from rich.console import Console
        from rich.table import Table as Grid
        from rich.text import Text

        console = Console(file=self.stdout, width=self._width(), highlight=False)
        grid = Grid(
            box=None,
            show_header=header,
            header_style="bold",
            pad_edge=False,
            padding=(0, _GAP, 0, 0),
        )
        for title in titles:
            grid.add_column(
                title.lstrip(">"),
                justify="right" if title.startswith(">") else "left",
                overflow="fold",
            )
        for row in rows:
            grid.add_row(*(Text(printable(str(cell), lines=False)) for cell in row))
        with console.capture() as captured:
            console.print(grid)
        for line in captured.get().splitlines():
            print(line.rstrip(), file=self.stdout)


def narrowest(table: Table) -> int:
    """Columns of a terminal in which every word of a table still has room.

    >>> narrowest(Table(("name", ">bytes a clip"), [("a b", "1.5 MB"), ("longer", "2 MB")]))
    13
    """
    columns = zip((title.lstrip(">") for title in table.titles), *table.rows, strict=True)
    words = (" ".join(map(str, column)).split() for column in columns)
    return sum(max(map(len, column), default=0) + _GAP for column in words) - _GAP


def error_document(error: BaseException, exit_code: int) -> dict[str, object]:
    """What ``--json`` prints of an error: its class, message, exit code and facts."""
    facts: Mapping[str, object] = error.facts if isinstance(error, DstreamError) else {}
    return {
        "error": type(error).__name__,
        "message": str(error),
        "exit_code": exit_code,
        "facts": plain(facts),
    }
