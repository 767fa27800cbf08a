"""Which engine makes the ranged reads: ``python``, or ``native`` where that is installed."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from dstream.errors import InvalidInputError
from dstream.measure import Meter
from dstream.store import libcurl
from dstream.store.options import FAST_EXTRA, LACKS_FAST, engine_sum
from dstream.store.s3_connection import Connection, Endpoint
from dstream.store.s3_curl import CurlConnection
from dstream.store.s3_http import KeptConnection


def unsuited(endpoint: Endpoint) -> str | None:
    """Why libcurl cannot serve an endpoint as Python does; None where it can. Pure."""
    return "user_in_url" if "@" in urlsplit(endpoint.url).netloc else None


def connector(engine: str, endpoint: Endpoint, meter: Meter) -> Callable[[], Connection]:
    """What makes the connections of one store to one endpoint.

    Counts the engine (``options.engine_sum``). ``auto`` is ``native`` over TLS, where its library
    is installed; without TLS Python is faster. An installed library that cannot serve counts
    ``("fallback", "engine:REASON")``.

    Raises:
        InvalidInputError: ``native`` is asked for and cannot be used.
    """
    is_wanted = engine == "native" or (engine == "auto" and endpoint.ca_bundle is not None)
    loaded = libcurl.load() if is_wanted else "not_wanted"
    reason = loaded if isinstance(loaded, str) else unsuited(endpoint)
    if not isinstance(loaded, str) and reason is None:
        meter.add(engine_sum("native"), 1)
        return lambda: CurlConnection(endpoint, loaded)
    if engine == "native":
        raise InvalidInputError(
            f"engine='native' cannot be used here ({reason}); {FAST_EXTRA} "
            "installs it, and engine='auto' does without"
        )
    if reason == "no_pycurl":
        meter.add(engine_sum(LACKS_FAST), 1)
    elif reason != "not_wanted":
        meter.event("fallback", f"engine:{reason}")
    meter.add(engine_sum("python"), 1)
    tls = endpoint.tls_context()
    return lambda: KeptConnection(endpoint, tls)
