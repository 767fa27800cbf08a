"""Names of artifacts and aliases, and references to generations. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dstream.errors import InvalidInputError

LATEST = "latest"
NEWEST = "newest"
MAX_NAME_CHARS = 200
MAX_ALIAS_CHARS = 100

_NAME_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")
_VERSION = re.compile(r"v([1-9][0-9]{0,18})")
_TXN_ID = re.compile(r"[0-9a-f]{32}")
_LIKE_VERSION = re.compile(r"[vV][0-9]*")


def check_name(name: str) -> str:
    """Return ``name`` if it can name an artifact, such as ``team/run-7``, else raise.

    Raises:
        InvalidInputError: with the reason.

    >>> check_name("team/run-7")
    'team/run-7'
    """
    fault = _name_fault(name)
    if fault is not None:
        raise InvalidInputError(f"unusable name {_shown(name)}: {fault}", name=name)
    return name


def check_alias(alias: str) -> str:
    """Return ``alias`` if it can be one, else raise.

    Raises:
        InvalidInputError: with the reason.
    """
    fault = None
    if alias == NEWEST:
        fault = "it always means the highest version"
    elif _LIKE_VERSION.fullmatch(alias):
        fault = "it looks like a version"
    elif len(alias) > MAX_ALIAS_CHARS:
        fault = f"it is longer than {MAX_ALIAS_CHARS} characters"
    elif not _ALIAS.fullmatch(alias) or ".." in alias:
        fault = "use a letter, then letters, digits, '.', '_' and '-'"
    if fault is not None:
        raise InvalidInputError(f"unusable alias {_shown(alias)}: {fault}", alias=alias)
    return alias


def check_session_key(key: str) -> str:
    """Return ``key`` if it can name a session, else raise.

    Raises:
        InvalidInputError: with the reason.
    """
    if len(key) > MAX_ALIAS_CHARS or not _NAME_PART.fullmatch(key) or ".." in key:
        raise InvalidInputError(
            f"unusable session key {_shown(key)}: use up to {MAX_ALIAS_CHARS} letters, digits, "
            "'.', '_' and '-'",
            key=key,
        )
    return key


def check_txn_id(txn_id: str) -> str:
    """Return ``txn_id`` if it has the form of a transaction's id, else raise.

    Raises:
        InvalidInputError: it cannot be one.
    """
    if not _TXN_ID.fullmatch(txn_id):
        raise InvalidInputError(
            f"not a transaction id: {_shown(txn_id)}; it has 32 hex digits, and stands in the "
            "error of the commit whose outcome is unknown",
            txn_id=txn_id,
        )
    return txn_id


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed ``name``, ``name@v3``, ``name@alias`` or ``name@newest``."""

    name: str
    version: int | None = None
    """Set for ``@v3``."""
    alias: str | None = LATEST
    """Set for an alias; both are None for ``@newest``."""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a reference; a bare name means its ``latest``.

        Raises:
            InvalidInputError: not a reference; the message shows the four forms.

        >>> Reference.parse("clips@v3")
        Reference(name='clips', version=3, alias=None)
        """
        name, at, selector = text.partition("@")
        check_name(name)
        return cls(name, *parse_selector(selector)) if at else cls(name)

    def __str__(self) -> str:
        if self.version is not None:
            return f"{self.name}@v{self.version}"
        return f"{self.name}@{self.alias or NEWEST}"


def parse_selector(selector: str) -> tuple[int | None, str | None]:
    """(version, alias) of what follows the ``@``; (None, None) is ``newest``.

    Raises:
        InvalidInputError: it is none of ``v3``, an alias, ``newest``.
    """
    if selector == NEWEST:
        return None, None
    match = _VERSION.fullmatch(selector)
    if match is not None:
        return int(match[1]), None
    if _LIKE_VERSION.fullmatch(selector) or not selector or selector.isdecimal():
        raise InvalidInputError(
            f"unusable reference @{_shown(selector)}: write name, name@v3, name@alias or "
            "name@newest",
            selector=selector,
        )
    return None, check_alias(selector)


def _name_fault(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(name) > MAX_NAME_CHARS:
        return f"it is longer than {MAX_NAME_CHARS} characters"
    if "@" in name:
        return "'@' separates a name from its version or alias"
    if name.startswith("/") or name.endswith("/"):
        return "it begins or ends with '/'"
    if ".." in name:
        return "it holds '..'"
    if not all(_NAME_PART.fullmatch(part) for part in name.split("/")):
        return (
            "use letters, digits, '.', '_' and '-', in parts joined by '/'; a part begins with a "
            "letter, a digit or '_'"
        )
    return None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
