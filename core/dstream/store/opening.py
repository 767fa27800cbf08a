"""From a URL to a store that counts and retries: the one way in for everything above."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

import numpy as np

from dstream.clock import Clock, SystemClock
from dstream.errors import InvalidInputError
from dstream.measure import Meter
from dstream.store.base import Store
from dstream.store.local import LocalStore
from dstream.store.local_walk import Skip
from dstream.store.memory import MemoryStore
from dstream.store.metered import Metered
from dstream.store.options import StoreOptions
from dstream.store.retry import Retrier, Retrying

__all__ = ["StoreOptions", "open_store"]

_LOST_SLASH = re.compile(r"(s3|file|memory):/(?!/)", re.IGNORECASE)


def open_store(
    url: str | os.PathLike[str],
    *,
    options: StoreOptions | None = None,
    meter: Meter | None = None,
    clock: Clock | None = None,
    rng: np.random.Generator | None = None,
    on_skip: Skip | None = None,
) -> Store:
    """The store at ``url``. Nothing is read yet, and nothing need exist yet.

    Args:
        url: ``s3://bucket/prefix``, ``file:///folder``, a path, or ``memory://name/prefix``
            (objects of this process, shared by name).
        options: credentials' profile, endpoint, retries; see :class:`StoreOptions`.
        meter: where requests, retries and skips are counted.
        rng: source of the retries' jitter.
        on_skip: told (name, reason) of what listings leave out, such as names that cannot be
            keys, unreadable folders and dangling links.

    Raises:
        InvalidInputError: the URL or an option is unusable.
    """
    options = options or StoreOptions()
    meter = meter or Meter()
    clock = clock or SystemClock()
    retrier = Retrier(options.retry, rng or np.random.default_rng(), meter, clock)
    text = os.fspath(url)
    _refuse_lost_slash(text)
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    if scheme == "s3":
        return Retrying(_s3(text, options, meter, clock, retrier, on_skip), retrier)
    if scheme == "memory":
        name, _, prefix = text.partition("://")[2].partition("/")
        if not name:
            raise InvalidInputError(f"{text!r} names no memory store; write memory://name")
        return Retrying(
            Metered(MemoryStore.named(name, prefix, clock=clock), meter, clock), retrier
        )
    local = LocalStore(_folder(text, scheme), meter=meter, clock=clock, on_skip=on_skip)
    return Retrying(Metered(local, meter, clock), retrier)


def _refuse_lost_slash(text: str) -> None:
    """``s3:/bucket`` would be a folder named ``s3:``, which nobody means."""
    match = _LOST_SLASH.match(text)
    if match is None:
        return
    scheme, rest = match[1].lower(), text[match.end() :]
    meant = f"{scheme}:///{rest}" if scheme == "file" else f"{scheme}://{rest}"
    # What stands before an @ may be a secret.
    shown = f"write {meant}" if "@" not in rest.partition("/")[0] else f"write {scheme}://"
    raise InvalidInputError(
        f"a URL of kind {scheme!r} has two slashes after the colon: {shown} (for a folder "
        f"of that very name: ./{scheme}:)"
    )


def _s3(
    url: str,
    options: StoreOptions,
    meter: Meter,
    clock: Clock,
    retrier: Retrier,
    on_skip: Skip | None,
) -> Store:
    # boto3 takes a good part of a second to import: only those who use it pay.
    from dstream.store.s3 import S3Store

    rest = url.partition("://")[2]
    if "@" in rest.partition("/")[0]:
        raise InvalidInputError(
            "an s3:// URL holds no credentials; give them as boto3 finds them "
            "(AWS_PROFILE, AWS_ACCESS_KEY_ID, ~/.aws/credentials, an instance's role)"
        )
    bucket, _, prefix = rest.partition("/")
    return S3Store(
        bucket,
        prefix,
        options.with_environment(os.environ),
        meter=meter,
        clock=clock,
        retrier=retrier,
        on_skip=on_skip,
    )


def _folder(text: str, scheme: str) -> str:
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise InvalidInputError(f"{text!r} is no absolute file URL; write file:///folder")
        text = unquote(parts.path)
        scheme = ""
    if scheme:
        raise InvalidInputError(
            f"{text!r}: stores of kind {scheme!r} are unknown; "
            "use s3://bucket/prefix, file:///folder, a path, or memory://name"
        )
    if not text or "\0" in text:
        raise InvalidInputError("a store needs a URL or a path, neither empty nor with a NUL")
    return text
