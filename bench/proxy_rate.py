"""How much the measuring proxy passes beside its client, and whether it states its own share.

    python bench/proxy_rate.py --endpoint http://127.0.0.1:9002 [--rounds 5] [--kib 256 1024 4096]

Reads ranges of one object by 8 threads of one process: straight from the server, through a relay
that only moves bytes, and through the proxy, each a process of its own; in turn. Then the same
ranges from a stand-in that answers from memory, which costs less than a server that stores. Prints
medians as Markdown; CPU is that of the relay's or the proxy's process by the kernel's count, and
beside it what the proxy's report says. Credentials as boto3 finds them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstream.diagnose.proxy import MeasuringProxy, user_upstream
from dstream.units import KIB, MIB

SIZE_BYTES = 256 * MIB
ROUTES = ("straight", "relay", "proxy")

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


# What stands between, each in a process of its own: it tells its address and waits to be told off


def serve_connections(handle: Callable[[socket.socket], None]) -> str:
    """Call ``handle`` with each connection, in a thread each; where they are accepted."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            threading.Thread(target=handle, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def relay(endpoint: str) -> None:
    """Move bytes and look at none of them: a thread for each direction."""
    host, port = endpoint.removeprefix("http://").rstrip("/").split(":")

    def pump(source: socket.socket, sink: socket.socket) -> None:
        view = memoryview(bytearray(256 * KIB))
        while size := source.recv_into(view):
            sink.sendall(view[:size])
        sink.shutdown(socket.SHUT_WR)

    def handle(client: socket.socket) -> None:
        server = socket.create_connection((host, int(port)))
        threading.Thread(target=pump, args=(client, server), daemon=True).start()
        pump(server, client)

    print(json.dumps({"endpoint": serve_connections(handle)}), flush=True)
    sys.stdin.read()


def stand_in(_: str) -> None:
    """Answer any GET of a range with so many bytes."""
    body = memoryview(os.urandom(16 * MIB))
    asked = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d+)", re.IGNORECASE)

    def handle(client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while received := client.recv(64 * KIB):
            start, last = (int(text) for text in asked.findall(received)[0])
            size = last + 1 - start
            head = (
                f'HTTP/1.1 206 Partial Content\r\nETag: "e"\r\nContent-Length: {size}\r\n'
                f"Content-Range: bytes {start}-{last}/{SIZE_BYTES}\r\n\r\n"
            )
            sent = client.sendmsg([head.encode(), body[:size]])
            client.sendall(body[max(0, sent - len(head)) : size])

    print(json.dumps({"endpoint": serve_connections(handle)}), flush=True)
    sys.stdin.read()


def proxy(endpoint: str) -> None:
    """The proxy itself; its report at the end."""
    with MeasuringProxy(user_upstream(endpoint)).serving() as measuring:
        told = {"endpoint": measuring.endpoint_url, "environment": measuring.environment({})}
        print(json.dumps(told), flush=True)
        sys.stdin.read()
        report = measuring.report()
    if set(report.outcomes) != {"ok"}:
        raise SystemExit(f"not all requests passed: {report.outcomes}")
    said = {
        "cpu_s": report.proxy_cpu_seconds,
        "request_cpu_s": report.proxy_cpu_seconds_per_request,
    }
    print(json.dumps(said), flush=True)


ROLES: Mapping[str, Callable[[str], None]] = {"relay": relay, "proxy": proxy, "stand-in": stand_in}


class Standing:
    """One of those processes."""

    def __init__(self, role: str, endpoint: str) -> None:
        command = [sys.executable, __file__, "--endpoint", endpoint, "--role", role]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        told = self._line()
        self.endpoint: str = told["endpoint"]
        self.environment: dict[str, str] = told.get("environment", {})
        self._began_cpu_s = self._kernel_cpu_s()

    def _line(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        return dict(json.loads(self._child.stdout.readline() or "{}"))

    def _kernel_cpu_s(self) -> float:
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> tuple[float, dict[str, Any]]:
        """CPU seconds since it stood there, by the kernel; and its last words."""
        cpu_s = self._kernel_cpu_s() - self._began_cpu_s
        assert self._child.stdin is not None
        self._child.stdin.close()
        told = self._line()
        self._child.wait()
        return cpu_s, told


@contextmanager
def standing(role: str, endpoint: str) -> Iterator[Standing]:
    """A process of this role for the length of the block."""
    one = Standing(role, endpoint)
    try:
        yield one
    finally:
        one.end()


# Measuring


@dataclass(frozen=True)
class Run:
    """One reading of all ranges."""

    bytes_per_s: float
    cpu_s: float = 0.0
    told_cpu_s: float = 0.0
    told_request_cpu_s: float = 0.0


def read_all(url: str, endpoint: str, step: int, environment: Mapping[str, str]) -> float:
    """Bytes a second of one run of the client."""
    sizes = [str(SIZE_BYTES), str(step), str(2 * SIZE_BYTES)]
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, url, endpoint, *sizes],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


def run(route: str, url: str, endpoint: str, step: int) -> Run:
    """Read everything by one route."""
    if route == "straight":
        return Run(read_all(url, endpoint, step, {}))
    between = Standing(route, endpoint)
    rate = read_all(url, between.endpoint, step, between.environment)
    cpu_s, told = between.end()
    if route == "proxy" and not told:
        raise SystemExit("the proxy did not report")
    return Run(rate, cpu_s, told.get("cpu_s", 0.0), told.get("request_cpu_s", 0.0))


def row(name: str, step: int, runs: Mapping[str, list[Run]]) -> str:
    """A line of the table."""
    requests = 2 * SIZE_BYTES // step

    def rate(route: str) -> str:
        found = sorted(one.bytes_per_s / 1e6 for one in runs[route])
        return f"{statistics.median(found):.0f} ({found[0]:.0f} to {found[-1]:.0f})"

    def cost_ms(route: str) -> float:
        return statistics.median(one.cpu_s for one in runs[route]) / requests * 1e3

    told = statistics.median(one.told_cpu_s / one.cpu_s for one in runs["proxy"])
    typical_ms = statistics.median(one.told_request_cpu_s for one in runs["proxy"]) * 1e3
    cells = [
        name, f"{step // KIB:,} KiB", *(rate(route) for route in ROUTES),
        f"{cost_ms('relay'):.2f}", f"{cost_ms('proxy'):.2f}", f"{typical_ms:.2f}", f"{told:.0%}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    import boto3

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kib", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--role", choices=sorted(ROLES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        ROLES[arguments.role](arguments.endpoint)
        return
    client = boto3.client("s3", endpoint_url=arguments.endpoint)
    bucket = f"rate-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    print(
        "| server | ranges | straight, MB/s | through a bare relay | through the proxy | "
        "CPU of the relay, ms a request | of the proxy | the proxy's own median | "
        "its total, of the kernel's |\n" + "|---" * 9 + "|"
    )
    with ExitStack() as stack:
        stack.callback(client.delete_bucket, Bucket=bucket)
        client.put_object(Bucket=bucket, Key="large", Body=os.urandom(SIZE_BYTES))
        stack.callback(client.delete_object, Bucket=bucket, Key="large")
        in_memory = stack.enter_context(standing("stand-in", "")).endpoint
        for name, endpoint in (("S3", arguments.endpoint), ("stand-in", in_memory)):
            for step in (kib * KIB for kib in arguments.kib):
                runs: dict[str, list[Run]] = {route: [] for route in ROUTES}
                for _ in range(arguments.rounds):
                    for route in ROUTES:
                        runs[route].append(run(route, f"s3://{bucket}", endpoint, step))
                print(row(name, step, runs), flush=True)


if __name__ == "__main__":
    main()
