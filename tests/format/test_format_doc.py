from __future__ import annotations

from pathlib import Path

from dstream.format.schema import SCHEMAS

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text()


def test_the_document_has_every_column_of_every_table() -> None:
    for table, columns in SCHEMAS.items():
        section = TEXT.partition(f"\n### {table}\n")[2].partition("\n#")[0]
        rows = [line for line in section.splitlines() if line.startswith("| `")]
        assert rows == [
            f"| `{c.name}` | {c.type}{', NULL allowed' if c.nullable else ''} | {c.doc} |"
            for c in columns
        ]
