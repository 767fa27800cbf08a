"""``dstream bench --compare``: what changed between two sets of benches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dstream.errors import InvalidInputError, NotFoundError
from dstream_cli.options import Common
from dstream_cli.render import Part, Table

if TYPE_CHECKING:
    from dstream.diagnose.bench.compare import Change, Comparison, Side


def bench_compare(call: Common, a: str, b: str) -> int:
    """Compare the documents in the files ``a`` with those in ``b``, each ``FILE[,FILE...]``."""
    from dstream.diagnose.bench.compare import compare

    found = compare(_side("A", a), _side("B", b))
    call.out.result(found, report_parts(found))
    return 0


def _side(side: str, files: str) -> Side:
    from dstream.diagnose.bench.compare import parse_bench, side_of

    documents, names = [], files.split(",")
    if len(set(names)) < len(names):
        raise InvalidInputError(f"{side} has a file twice: one run counts once", files=files)
    for name in names:
        try:
            documents.append(parse_bench(Path(name).read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no file {name}", path=name) from error
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{name} cannot be read: {error}", path=name) from error
        except InvalidInputError as error:
            raise InvalidInputError(f"{name}: {error}", path=name) from error
    return side_of(documents)


def report_parts(found: Comparison) -> list[Part]:
    """The comparison for people."""
    parts: list[Part] = [found.sentence]
    if found.asked:
        names = ", ".join(change.what for change in found.asked)
        parts += [
            Table(("", "A", "B"), _rows(found.asked), title="Asked for, or run with"),
            f"The ratio is of all of these together: {names}.",
        ]
    if found.figures:
        parts.append(Table(("", ">A", ">B"), _rows(found.figures), title="Measured besides"))
    return parts


def _rows(changes: Sequence[Change]) -> list[tuple[str, str, str]]:
    return [(change.what, _shown(change.a), _shown(change.b)) for change in changes]


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
