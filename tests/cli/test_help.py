from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cli_runner import dstream
from dstream_cli.main import app
from dstream_cli.options import EXIT_CODES

ROOT = Path(__file__).parents[2]
VERBS = [str(command.name) for command in app.registered_commands]
COMMAND = typer.main.get_command(app)


def options_of(verb: str) -> list[str]:
    command = COMMAND.commands[verb]  # type: ignore[attr-defined]
    flags = [flag for param in command.params for flag in param.opts if flag.startswith("--")]
    return sorted(set(flags) - {"--help"})


def test_the_verbs_of_the_first_release_are_there() -> None:
    assert {"init", "ingest", "ls", "show", "log", "bench", "recipes"} <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples_and_exit_codes(verb: str) -> None:
    ran = dstream(verb, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "Examples:\n" in ran.out
    assert f"dstream {verb}" in ran.out.partition("Examples:")[2]
    assert "  0  done" in ran.out.partition("Exit codes:")[2]
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_and_option_is_documented(verb: str) -> None:
    _, _, after = (ROOT / "docs/cli.md").read_text().partition(f"\n## `dstream {verb}")
    assert after, f"docs/cli.md has no section for {verb}"
    section = after.partition("\n## ")[0]
    common = {"--json", "--quiet", "--debug", "--s3-arg", "--repo"}
    missing = [flag for flag in options_of(verb) if flag not in common and flag not in section]
    assert not missing
    assert f"dstream {verb}" in section.partition("```")[2], "no example"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_speaks_json_and_only_init_takes_its_repository_by_place(verb: str) -> None:
    assert {"--json", "--quiet", "--debug"} <= set(options_of(verb))
    assert ("--repo" in options_of(verb)) == (verb not in {"doctor", "init", "proxy", "recipes"})


def test_exit_codes_are_documented() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    root_help = dstream("--help").out
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in text
        assert f"{code}  {meaning}" in root_help


def test_no_verb_shows_the_help() -> None:
    ran = dstream()
    assert ran.code == 2
    assert ran.out == ""
    assert "Commands:" in ran.err


def test_version() -> None:
    assert dstream("--version").out.startswith("dstream 0.")


def test_help_imports_nothing_heavy() -> None:
    heavy = {"numpy", "av", "boto3", "botocore", "duckdb", "torch", "rich", "zstandard"}
    code = (
        "import sys, dstream_cli.main as m; from dstream_cli.render import Output;"
        "m.run(['ingest', '--help'], Output());"
        f"sys.exit(','.join(sorted({heavy!r} & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: dstream ingest" in done.stdout
