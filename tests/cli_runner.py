"""Runs command lines in this process, for tests."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from dstream_cli.main import run
from dstream_cli.render import Output


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command line did."""

    code: int
    out: str
    err: str

    def document(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)


def dstream(*arguments: object) -> Ran:
    """Run ``dstream ARGUMENTS`` and catch what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([str(argument) for argument in arguments], Output(out, err))
    return Ran(code, out.getvalue(), err.getvalue())
