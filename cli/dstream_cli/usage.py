"""What is wrong with a command line, in words of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dstream.errors import InvalidInputError

T = TypeVar("T")

_EXPECTED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "int_parsing": lambda _: "a whole number",
    "int_type": lambda _: "a whole number",
    "int_from_float": lambda _: "a whole number",
    "int_parsing_size": lambda _: "a smaller whole number",
    "float_parsing": lambda _: "a number",
    "float_type": lambda _: "a number",
    "finite_number": lambda _: "a finite number",
    "bool_parsing": lambda _: "true or false",
    "greater_than_equal": lambda limit: f"{limit['ge']:g} or more",
    "greater_than": lambda limit: f"more than {limit['gt']:g}",
    "less_than_equal": lambda limit: f"{limit['le']:g} or less",
    "less_than": lambda limit: f"less than {limit['lt']:g}",
}


def told(error: Exception) -> str:
    """The message of an error of parsing: the option, what was given, what is expected.

    Typer checks values with a library that explains itself in its own words; where its error is
    known by kind, ours are put in their place.
    """
    whole = str(getattr(error, "format_message", error.__str__)())
    theirs = str(getattr(error, "message", ""))
    details = getattr(error.__cause__, "errors", None)
    if not theirs or theirs not in whole or not callable(details):
        return whole
    detail = details()[0]
    given, facts = detail.get("input"), detail.get("ctx") or {}
    expected = _EXPECTED.get(str(detail.get("type")))
    if expected is not None:
        ours = f"{given!r} was given, expected {expected(facts)}"
    else:
        ours = str(facts.get("error", theirs))  # the reason itself, without "Value error"
        if repr(given) not in ours:
            ours = f"{given!r} was given: {ours}"
    return whole.replace(theirs, ours)


_ARGUMENT = re.compile(
    r"""(?<![\w.=/`'"-])([a-z][a-z_]*)  # a name of its own
    (?:(=)('[^']*'?|"[^"]*"?            # and its value: text, perhaps cut off
        |\(height,\ width\)            # or the form of one
        |[\w.]*\w                       # or a number or a word
    )?)?""",
    re.VERBOSE,
)


def spoken(message: str, options: Mapping[str, str]) -> str:
    """A message of the library, with options in place of the arguments that they are given as.

    Args:
        message: names arguments as Python writes them: ``cache=``, ``batch_size=1``, ``max_gap``.
        options: of the verb, by the name of the argument.

    >>> options = {"batch_size": "--batch-size", "crop": "--crop", "where": "--where"}
    >>> spoken("give crop=(height, width), or batch_size=1; batch_size is 0", options)
    'give --crop HEIGHTxWIDTH, or --batch-size 1; --batch-size is 0'
    >>> spoken("where='crop=1 or ' cannot be parsed: crop or where", options)
    "--where 'crop=1 or ' cannot be parsed: crop or where"
    """

    def replaced(found: re.Match[str]) -> str:
        name, equals, value = found.groups()
        is_argument = equals is not None or "_" in name
        if not is_argument or name not in options or value in ("None", "True", "False"):
            return found[0]
        if value is None:
            return options[name]
        return f"{options[name]} {'HEIGHTxWIDTH' if value.startswith('(') else value}"

    return _ARGUMENT.sub(replaced, message)


def parsed(option: str, parse: Callable[[str], T], text: str) -> T:
    """``parse(text)``; its InvalidInputError names the option."""
    try:
        return parse(text)
    except InvalidInputError as error:
        raise InvalidInputError(f"{option}: {error}", **error.facts) from error
