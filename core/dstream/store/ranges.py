"""Half-open byte ranges and listing prefixes: the checks that every store makes alike."""

from __future__ import annotations

from dstream.errors import InvalidInputError, ShortReadError


def check_range(key: str, start_byte: int, stop_byte: int | None) -> None:
    """Refuse a range that is none: ``0 <= start_byte <= stop_byte`` must hold.

    Raises:
        InvalidInputError: negative or reversed.
    """
    if start_byte < 0 or (stop_byte is not None and stop_byte < start_byte):
        raise InvalidInputError(
            f"bytes [{start_byte}, {stop_byte}) of {key!r} are no range; "
            "give 0 <= start_byte <= stop_byte",
            key=key,
            start_byte=start_byte,
            stop_byte=stop_byte,
        )


def stop_within(key: str, start_byte: int, stop_byte: int | None, size_bytes: int) -> int:
    """Where the read ends, when the object holds all that is asked for.

    ``start_byte == size_bytes`` without a stop is an empty read, not an error.

    Raises:
        ShortReadError: the object is too short. It is marked ``retry=False``.

    >>> stop_within("k", 2, None, 10), stop_within("k", 2, 4, 10)
    (10, 4)
    """
    stop = size_bytes if stop_byte is None else stop_byte
    if start_byte > size_bytes or stop > size_bytes:
        raise past_end(key, start_byte, stop_byte, size_bytes)
    return stop


def past_end(key: str, start_byte: int, stop_byte: int | None, size_bytes: int) -> ShortReadError:
    """The error for a range that the object is too short for; another attempt cannot help."""
    return ShortReadError(
        f"{key}: bytes [{start_byte}, {'end' if stop_byte is None else stop_byte}) were asked for, "
        f"the object has {size_bytes}; it was truncated or replaced, or the index is another's",
        key=key,
        start_byte=start_byte,
        stop_byte=stop_byte,
        size_bytes=size_bytes,
        received_bytes=0,
        retry=False,
    )


def check_prefix(prefix: str) -> str:
    """Return a listing prefix that cannot lead outside the store's root, else raise.

    A prefix is a string, not a folder: it may be empty, end in ``/`` or end inside a name.

    Raises:
        InvalidInputError: absolute, not Unicode, or holding NUL, ``.``, ``..`` or an empty part.

    >>> check_prefix("a/b"), check_prefix("a/"), check_prefix("")
    ('a/b', 'a/', '')
    """
    folders = prefix.split("/")[:-1]
    try:
        prefix.encode()
        fault = "\0" in prefix or any(part in ("", ".", "..") for part in folders)
    except UnicodeEncodeError:
        fault = True
    if fault or prefix.rpartition("/")[2] == "..":
        raise InvalidInputError(
            f"unusable listing prefix {prefix!r}: it must be relative, without '.', '..', NUL "
            "or empty parts",
            prefix=prefix,
        )
    return prefix
