"""How much the measuring proxy passes beside its client, and what it costs a request.

    python bench/proxy_rate.py --endpoint http://127.0.0.1:9002

Reads ranges of one object by 8 threads of another process: straight from the server, through the
proxy, and through a bare relay that only moves bytes; in turn, five times. Prints medians.
Credentials as boto3 finds them.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from dstream.diagnose.proxy import MeasuringProxy, user_upstream
from dstream.units import MIB

SIZE_BYTES = 256 * MIB

CLIENT = """
import sys, threading, time
from dstream.store.opening import open_store
from dstream.store.options import StoreOptions
url, endpoint, size, step, total = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
store = open_store(url, options=StoreOptions(endpoint_url=endpoint))
places = iter(range(0, total, step))
lock = threading.Lock()
def work():
    while True:
        with lock:
            place = next(places, None)
        if place is None:
            return
        start = place % size
        assert len(store.get("large", start, start + step).data) == step
store.get("large", 0, 1)
began = time.perf_counter()
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(total / (time.perf_counter() - began))
"""


def rate(url: str, endpoint: str, step: int, environment: dict[str, str]) -> float:
    """Bytes a second of one run of the client."""
    sizes = [str(SIZE_BYTES), str(step), str(2 * SIZE_BYTES)]
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, url, endpoint, *sizes],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


@contextmanager
def bare_relay(target: tuple[str, int]) -> Iterator[str]:
    """A relay that moves bytes and looks at none of them: a thread for each direction."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        buffer = bytearray(256 * 1024)
        view = memoryview(buffer)
        try:
            while size := source.recv_into(buffer):
                sink.sendall(view[:size])
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(target)
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=pump, args=(one, other), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def main() -> None:
    import boto3

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    client = boto3.client("s3", endpoint_url=arguments.endpoint)
    bucket = f"rate-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="large", Body=os.urandom(SIZE_BYTES))
    host, port = arguments.endpoint.removeprefix("http://").rstrip("/").split(":")
    try:
        for step in (256 * 1024, MIB, 4 * MIB):
            rates: dict[str, list[float]] = {"direct": [], "proxy": [], "relay": []}
            proxy = MeasuringProxy(user_upstream(arguments.endpoint))
            with proxy.serving(), bare_relay((host, int(port))) as relay:
                for _ in range(arguments.rounds):
                    for name, endpoint, environment in (
                        ("direct", arguments.endpoint, dict(os.environ)),
                        ("proxy", proxy.endpoint_url, proxy.environment(os.environ)),
                        ("relay", relay, dict(os.environ)),
                    ):
                        rates[name].append(rate(f"s3://{bucket}", endpoint, step, environment))
                report = proxy.report()
            told = "  ".join(
                f"{name} {statistics.median(found) / 1e6:6.0f} MB/s"
                for name, found in rates.items()
            )
            cost_ms = 1000 * report.proxy_cpu_seconds_per_request
            print(f"{step >> 10:5} KiB  {told}  {cost_ms:.2f} ms of CPU a request", flush=True)
    finally:
        client.delete_object(Bucket=bucket, Key="large")
        client.delete_bucket(Bucket=bucket)


if __name__ == "__main__":
    main()
