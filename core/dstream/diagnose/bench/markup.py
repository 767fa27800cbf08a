"""HTML and SVG by construction: every text is escaped, unless it was made here."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

_VOID = {"meta", "br", "line", "rect", "path", "circle", "polyline"}


class Markup(str):
    """Text that is HTML already. Only :func:`el` and :func:`raw` make it."""

    __slots__ = ()


def raw(text: str) -> Markup:
    """Text that is HTML by itself: a stylesheet of ours, never anything from outside."""
    return Markup(text)


def el(name: str, /, *children: object, **attributes: Any) -> Markup:
    """One element.

    Args:
        name: of the element.
        children: markup, text to be escaped, or nested lists of them; None is left out.
        attributes: ``class_`` is ``class``, ``stroke_width`` is ``stroke-width``; numbers are
            rounded to a tenth; None is left out.

    >>> print(el("p", "a < b", el("b", "!"), class_="x", data_n=1.2345))
    <p class="x" data-n="1.2">a &lt; b<b>!</b></p>
    >>> print(el("line", x1=0, x2=None))
    <line x1="0"/>
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(_flat(children))
    if not inside and name in _VOID:
        return Markup(f"<{name}{told}/>")
    return Markup(f"<{name}{told}>{inside}</{name}>")


def _flat(children: Iterable[object]) -> Iterable[str]:
    for child in children:
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, list | tuple):
            yield from _flat(child)
        elif child is not None:
            yield escape(_plain(child))


def _plain(value: object) -> str:
    """``value`` as text; what cannot be seen, or is no character of HTML, is told by its number.

    >>> print(_plain(2.0), _plain("a\\x1b[2J"), _plain("\\udcff"))
    2 a\\x1b[2J \\udcff
    """
    text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )
