"""A measuring S3 endpoint on loopback, in front of the real one.

Whatever a command does to its store passes through and is counted. The command gets a key made
for it alone; requests signed with it are checked and signed anew with the user's credentials,
which the command never sees.
"""

from __future__ import annotations

import os
import secrets
import socketserver
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dstream.clock import Clock, SystemClock
from dstream.diagnose.prices import Prices
from dstream.diagnose.relay import Log, Relay, Settings
from dstream.diagnose.shaping import Shape
from dstream.diagnose.sigv4 import Key
from dstream.diagnose.traffic import Traffic, TrafficReport
from dstream.diagnose.upstream import Upstream
from dstream.errors import InvalidInputError

_LOOPBACK = "127.0.0.1"
_SETTLE_S = 2.0
# What would lead a command around the proxy, or name credentials that are not the proxy's.
_REMOVED = (
    "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CREDENTIAL_EXPIRATION",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "DSTREAM_S3_NO_SIGN_REQUEST",
)  # fmt: skip


class ProxyServer(socketserver.ThreadingTCPServer):
    """The listening side. A thread a connection, none of which keeps the process alive."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        super().__init__((_LOOPBACK, 0), Relay)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that hangs up is counted, and is no error of the proxy."""


class MeasuringProxy:
    """Counts what passes between a command and its store.

    Args:
        upstream: the real server, and the credentials for it.
        shape: delay, bandwidth and faults to add.
        clock: measures, and waits for what is added.
        log: gets one JSON line for every request.
    """

    def __init__(
        self,
        upstream: Upstream,
        shape: Shape | None = None,
        *,
        clock: Clock | None = None,
        log: Log | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.key = Key("DSTREAM" + secrets.token_hex(6).upper(), secrets.token_urlsafe(30))
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._began_cpu_s = time.process_time()
        self._traffic = Traffic(self._began_s)
        settings = Settings(upstream, self.key, shape or Shape(), clock, self._traffic, log)
        self._server = ProxyServer(settings)
        self.endpoint_url = f"http://{_LOOPBACK}:{self._server.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator[MeasuringProxy]:
        """Serve until the end of the block."""
        thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="dstream-proxy", daemon=True
        )
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` for a command that is to speak to this proxy, in the words of many clients."""
        kept = {name: value for name, value in base.items() if name not in _REMOVED}
        no_proxy = ",".join(filter(None, (base.get("NO_PROXY") or base.get("no_proxy"), _LOOPBACK)))
        return {
            **kept,
            "AWS_ACCESS_KEY_ID": self.key.access,
            "AWS_SECRET_ACCESS_KEY": self.key.secret,
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_ALLOW_HTTP": "true",  # object_store, and what is built on it
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
            "AWS_EC2_METADATA_DISABLED": "true",
            "FSSPEC_S3_ENDPOINT_URL": self.endpoint_url,  # s3fs
            "S3_ENDPOINT_URL": self.endpoint_url,  # MosaicML Streaming and others
            "NO_PROXY": no_proxy,
            "no_proxy": no_proxy,
        }

    def report(self, prices: Prices | None = None, *, settle_s: float = _SETTLE_S) -> TrafficReport:
        """What passed since this proxy was made.

        Args:
            prices: what requests and bytes cost.
            settle_s: how long to wait for answers that still pass; 0 while a client goes on.
        """
        self._traffic.wait_idle(settle_s)
        wall_s = self._clock.monotonic_s() - self._began_s
        cpu_s = time.process_time() - self._began_cpu_s
        return self._traffic.report(wall_s, cpu_s, prices or Prices())


def user_upstream(url: str | None = None, region: str | None = None) -> Upstream:
    """The server and the credentials that boto3 would use here.

    Args:
        url: another server; by default the configured endpoint, or AWS of the region.
        region: of the signatures, and of AWS's endpoint.

    Raises:
        InvalidInputError: there are no credentials, or the URL is unusable.
    """
    import botocore.session

    session = botocore.session.Session()
    found_region = region or session.get_config_variable("region")
    if url is None:
        url = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if url is None:
        url = f"https://s3.{found_region or 'us-east-1'}.amazonaws.com"
    credentials = session.get_credentials()
    if credentials is None:
        raise InvalidInputError(
            "no credentials for the real server: give them as boto3 finds them "
            "(AWS_PROFILE, AWS_ACCESS_KEY_ID, ~/.aws/credentials, an instance's role)"
        )

    def key() -> Key:
        frozen = credentials.get_frozen_credentials()
        return Key(frozen.access_key, frozen.secret_key, frozen.token)

    return Upstream(url, found_region, key)
