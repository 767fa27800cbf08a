"""The requests of ranged reads, made once for many: all ranges of an object have one in common.

botocore builds one request, with the endpoint, the addressing and the user's request arguments;
this module only puts key, conditions and signature into it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlsplit

from dstream.clock import SystemClock
from dstream.store.s3_client import Clients, GetTemplate
from dstream.store.s3_connection import Endpoint, Request
from dstream.store.s3_sign import signed_headers

_CLOCK = SystemClock()
_SIGNED_FOR_S = 20
"""How old a signature may be that is used again; S3 takes them for 15 minutes."""
_UNRESERVED = "-._~"
_REMEMBERED = 1024


class Requests:
    """For the objects of one bucket. By many threads."""

    def __init__(self, clients: Clients, template: GetTemplate, endpoint: Endpoint) -> None:
        self._clients, self._endpoint, self._region = clients, endpoint, template.region
        self._path_before = urlsplit(template.url_before).path
        self._query = template.url_after.removeprefix("?")
        given = {name: value for name, value in template.headers.items() if name != "Range"}
        self._constant = {**given, "Accept-Encoding": "identity"}
        self._remembered = lru_cache(maxsize=_REMEMBERED)(self._made)

    def request(self, key: str, version: str | None, if_match: str | None) -> Request:
        """Everything of a request but its range.

        Args:
            key: the whole key.
            version: of the object.
            if_match: the ETag, without quotes, that the server is to compare.

        Raises:
            BotoCoreError: there are no credentials.
            InvalidInputError: a header's value cannot be sent.
        """
        if self._region is None:
            return self._remembered(key, version, if_match, None, 0)
        credentials = self._clients.credentials()
        period = int(_CLOCK.now_s()) // _SIGNED_FOR_S
        return self._remembered(key, version, if_match, credentials, period)

    def _made(
        self, key: str, version: str | None, if_match: str | None, credentials: Any, period: int
    ) -> Request:
        path = f"{self._path_before}{quote(key, safe=_UNRESERVED + '/')}"
        query = self._query
        if version is not None:
            parts = (*query.split("&"), f"versionId={quote(version, safe=_UNRESERVED)}")
            query = "&".join(sorted(filter(None, parts)))
        headers = self._constant
        if credentials is not None:
            given = (credentials.access_key, credentials.secret_key, credentials.token)
            now_s = period * _SIGNED_FOR_S
            headers = signed_headers(
                self._endpoint.host, path, query, headers, given, self._region or "", now_s
            )
        # S3 wants no signature of this, nor of the range, so that one of an object serves all.
        if if_match is not None:
            headers = {**headers, "If-Match": f'"{if_match}"'}
        return self._endpoint.request(f"{path}?{query}" if query else path, headers)
