from __future__ import annotations

import io
import json
import re
from fractions import Fraction
from pathlib import PurePosixPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.clock import FakeClock
from dstream.errors import MediaReason
from dstream_cli.log import told
from dstream_cli.options import is_path
from dstream_cli.plain import plain, printable, sparkline, timestamp
from dstream_cli.progress import ProgressLine
from dstream_cli.render import Facts, Output, Table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_documents_are_json_whatever_they_hold() -> None:
    document = {
        "number": np.int64(3),
        "array": np.array([1.5, np.nan]),
        "fraction": Fraction(30000, 1001),
        "reason": MediaReason.EMPTY,
        "path": PurePosixPath("a/b"),
        3: (1, 2),
        "bytes": b"x",
    }
    out = Output(io.StringIO(), io.StringIO(), json=True)
    out.result(document, ["not printed"])
    assert isinstance(out.stdout, io.StringIO)
    assert json.loads(out.stdout.getvalue()) == {
        "number": 3,
        "array": [1.5, None],
        "fraction": "30000/1001",
        "reason": "empty",
        "path": "a/b",
        "3": [1, 2],
        "bytes": "b'x'",
    }


@given(st.recursive(st.none() | st.floats() | st.text(), st.lists))
def test_any_value_becomes_json(value: object) -> None:
    json.dumps(plain(value), allow_nan=False)


@given(st.text())
def test_text_from_outside_cannot_steer_a_terminal(text: str) -> None:
    shown = printable(text)
    assert all(c.isprintable() or c == "\n" for c in shown)


def test_tables_fit_eighty_columns_and_lose_nothing() -> None:
    stdout = io.StringIO()
    name = "recordings/2026-05-11/" + "x" * 150 + ".mp4"
    Output(stdout, io.StringIO()).result(
        {},
        [
            Facts([("source", name), ("escape", "\x1b[2J"), ("markup", "[bold]")], title="A"),
            Table(("name", ">size"), [(name, 12), ("短い名前" * 20, 7)]),
            "a sentence that is rather longer than the eighty columns which a terminal has, so it",
        ],
    )
    lines = stdout.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    joined = "".join(line.replace(" ", "") for line in lines)
    assert joined.count("x" * 150) == 1 or joined.count("x") >= 300
    assert "\\x1b[2J" in stdout.getvalue()
    assert "[bold]" in stdout.getvalue()


@pytest.mark.parametrize(("columns", "is_table"), [(40, False), (60, True), (200, True)])
def test_a_terminal_too_narrow_for_a_table_gets_its_rows_one_by_one(
    columns: int, is_table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    titles = ("stage alone", ">clips/s", ">of the whole", ">in its unit", ">busy", ">threads")
    rows = [
        ("decode", "1,234", "2.62x", "123,456 frames/s", "38%", 16),
        ("consumer", "4.44", "1.01x", "1.11 batches/s", "", 1),
    ]
    stdout = Terminal()
    Output(stdout, io.StringIO()).result({}, [Table(titles, rows)])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", stdout.getvalue())
    assert all(len(line) <= columns for line in shown.splitlines())
    words = {word for row in rows for cell in row for word in str(cell).split()}
    assert words <= set(shown.split())
    assert shown.count("clips/s") == (1 if is_table else 2)
    assert ("busy          38%" in shown) is not is_table
    assert shown.count("busy") == 1  # what is empty is left out


def test_messages_go_to_stderr_and_can_be_silenced() -> None:
    for out, expected in (
        (Output(io.StringIO(), io.StringIO()), "hint\n"),
        (Output(io.StringIO(), io.StringIO(), quiet=True), ""),
        (Output(io.StringIO(), io.StringIO(), json=True), ""),
    ):
        out.message("hint")
        assert isinstance(out.stderr, io.StringIO)
        assert isinstance(out.stdout, io.StringIO)
        assert (out.stderr.getvalue(), out.stdout.getvalue()) == (expected, "")


def drive(out: Output, clock: FakeClock) -> None:
    with ProgressLine(out, clock, "ingest") as line:
        for done in range(0, 60, 2):
            clock.sleep(1.0)
            line.update(
                done=done,
                total=60,
                done_bytes=done * 1_000_000,
                total_bytes=60_000_000,
                what="files",
            )


def test_progress_is_a_line_now_and_then_in_a_log() -> None:
    stderr = io.StringIO()
    drive(Output(io.StringIO(), stderr), FakeClock())
    assert stderr.getvalue().splitlines() == [
        "ingest: 18 of 60 files, 18 MB of 60 MB, 2 MB/s, 21.0 s left",
        "ingest: 38 of 60 files, 38 MB of 60 MB, 2 MB/s, 11.0 s left",
        "ingest: 58 of 60 files, 58 MB of 60 MB, 2 MB/s, 1.0 s left",
    ]


def test_progress_redraws_one_line_on_a_terminal_and_clears_it() -> None:
    stderr = Terminal()
    drive(Output(io.StringIO(), stderr), FakeClock())
    text = stderr.getvalue()
    assert "\n" not in text
    assert max(len(piece) for piece in text.split("\r")) < 80
    assert text.split("\r")[-2].strip() == ""


@pytest.mark.parametrize(("json_mode", "quiet"), [(True, False), (False, True)])
def test_progress_is_silent_for_machines(json_mode: bool, quiet: bool) -> None:
    stderr = io.StringIO()
    drive(Output(io.StringIO(), stderr, json=json_mode, quiet=quiet), FakeClock())
    assert stderr.getvalue() == ""


@pytest.mark.parametrize(
    ("values", "bars"), [([], ""), ([5], "█"), ([0, 0], "▁▁"), ([1, 8, 4], "▂█▅")]
)
def test_sparklines(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars


def test_sparklines_pool_by_maximum() -> None:
    assert sparkline([0, 8, 0, 0], width=2) == "█▁"
    assert len(sparkline(range(1000), width=60)) <= 60


@pytest.mark.parametrize(
    ("time_s", "text"), [(None, ""), (0.0, "1970-01-01T00:00:00Z"), (1e30, "?")]
)
def test_times(time_s: float | None, text: str) -> None:
    assert timestamp(time_s) == text


def test_operations_of_newer_versions_are_told_by_name() -> None:
    assert told({"op": "move_alias", "name": "a", "alias": "prod", "version": 3}) == (
        "a@prod is now v3"
    )
    assert told({"op": "freeze", "until": 7}) == "freeze until=7"


@pytest.mark.parametrize(
    ("target", "repo", "expected"),
    [
        ("s3://b/x", "r", True),
        ("./demo", "r", True),
        ("/videos", "r", True),
        ("demo", "r", False),
        ("demo@v3", "r", False),
        ("folder", "r", False),
        ("folder", "", True),
        ("folder/a.mp4", "r", True),
        ("a.mp4", "r", True),
        ("team/run-7", "r", False),
        ("gone/a.mp4", "", True),
        ("demo", "", False),
    ],
)
def test_names_and_paths_are_told_apart(
    target: str,
    repo: str,
    expected: bool,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path_factory.mktemp("here")
    (place / "folder").mkdir()
    (place / "folder" / "a.mp4").touch()
    (place / "a.mp4").touch()
    monkeypatch.chdir(place)
    assert is_path(target, repo) is expected
