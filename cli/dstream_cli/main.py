"""The command line's entry point: builds the app, runs a verb, maps errors to exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from dstream import __version__
from dstream.errors import DstreamError, StorageError
from dstream_cli import (
    alias,
    bench,
    cache,
    doctor,
    fetch,
    gc,
    ingest,
    init,
    log,
    ls,
    pin,
    pins,
    plan,
    promote,
    proxy,
    publish,
    recipes,
    renew,
    resolve,
    retire,
    show,
    unpin,
    verify,
)
from dstream_cli.options import EXIT_CODES, EXIT_INTERRUPTED, epilog
from dstream_cli.render import Output
from dstream_cli.usage import spoken, told

EXIT_FAILED = 1
EXIT_BROKEN_PIPE = 141
"""What a shell reports of a program that SIGPIPE ended."""

app = typer.Typer(
    name="dstream",
    help="Stream exact clips from raw video in a bucket or a folder, and see what it cost.",
    epilog=epilog(
        "dstream init s3://lab/repo",
        "export DSTREAM_REPO=s3://lab/repo",
        "dstream ingest s3://raw/videos --name gameplay --in-place",
        "dstream bench gameplay --frames 16 --fps 8",
        codes=tuple(EXIT_CODES),
    ),
    no_args_is_help=True,
    # Plain help: it starts in a tenth of the time that the decorated one takes.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dstream {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Stream exact clips from raw video in a bucket or a folder, and see what it cost."""


VERBS = (
    init,
    ingest,
    ls,
    show,
    log,
    publish,
    fetch,
    bench,
    plan,
    cache,
    proxy,
    doctor,
    promote,
    alias,
    retire,
    pin,
    pins,
    renew,
    unpin,
    gc,
    verify,
    resolve,
    recipes,
)

for verb in VERBS:
    app.command(verb.NAME, short_help=verb.SUMMARY, epilog=verb.EPILOG)(verb.run)


def run(arguments: Sequence[str], out: Output) -> int:
    """Run one command line and return its exit code. Never raises, never exits."""
    before_names = arguments[: arguments.index("--")] if "--" in arguments else arguments
    out.json = "--json" in before_names
    out.debug = "--debug" in before_names
    try:
        with out.printing():
            returned = _invoke(arguments, out)
    except BrokenPipeError:
        _close_quietly(out)
        return EXIT_BROKEN_PIPE
    except (KeyboardInterrupt, typer.Abort):
        return _failed(KeyboardInterrupt("interrupted"), EXIT_INTERRUPTED, out)
    except DstreamError as error:
        error.message = spoken(error.message, _options(arguments))
        return _failed(error, error.exit_code, out)
    except _USAGE_ERROR as error:
        return _misused(error, out)
    except MemoryError as error:
        short = StorageError(
            f"there is not enough memory ({error}); ask for smaller or fewer frames, or fewer "
            "clips at once"
        )
        return _failed(short.with_traceback(error.__traceback__), short.exit_code, out)
    except Exception as error:
        hint = "" if out.debug else "This is unexpected. Run it again with --debug for a traceback."
        return _failed(error, EXIT_FAILED, out, hint)
    return returned if isinstance(returned, int) else 0


def _invoke(arguments: Sequence[str], out: Output) -> object:
    """Parse and call the verb; what it returns.

    Not by the command's own ``main``, which swallows interrupts and broken pipes.
    """
    command = typer.main.get_command(app)
    try:
        with command.make_context("dstream", list(arguments), obj=out) as context:
            return command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """Those of the verb that take a value, by the names of their arguments."""
    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands", {})
    verb = next((commands[word] for word in arguments if word in commands), None)
    return {
        option.name: option.opts[0]
        for option in (verb.params if verb is not None else ())
        if option.opts[0].startswith("--") and not option.is_flag
    }


# Typer's base of all errors of parsing, under the name that it has in every version.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]


def _misused(error: Exception, out: Output) -> int:
    """Report a wrong command line, and how to get help on it."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "dstream"
    message = told(error)
    if message.startswith("Usage:"):  # no verb was given
        print(message, file=out.stderr)
        return 2
    out.error(UsageError(message), 2, f"Try '{path} --help'.")
    return 2


class UsageError(Exception):
    """A command line that cannot be parsed."""


def _failed(error: BaseException, exit_code: int, out: Output, hint: str = "") -> int:
    if out.debug:
        import traceback

        traceback.print_exception(error, file=out.stderr)
    try:
        if not isinstance(error, DstreamError | KeyboardInterrupt):
            error = RuntimeError(f"{type(error).__name__}: {error}") if not out.json else error
        out.error(error, exit_code, hint)
    except OSError:
        pass  # nobody can be told
    _close_quietly(out)
    return exit_code


def _close_quietly(out: Output) -> None:
    """Give a dead pipe's or a full disk's end to nothing: the interpreter flushes once more."""
    for stream in (out.stdout, out.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)


def main() -> None:
    """Run the process's command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # names that the terminal cannot show
    if "_DSTREAM_COMPLETE" in os.environ:  # a shell asks what could come next
        typer.main.get_command(app).main(prog_name="dstream")
    sys.exit(run(sys.argv[1:], Output()))
