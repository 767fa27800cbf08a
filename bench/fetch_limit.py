"""Fetching alone: dstream's ranged reads through all its wrappers, beside bare loops.

    python bench/fetch_limit.py                        a server of this benchmark's own, with and
                                                       without TLS
    python bench/fetch_limit.py --endpoint-url http://127.0.0.1:9002 --bucket some-bucket

The bare loops are http.client with one kept connection a thread (plain requests to the server of
this benchmark, presigned ones to another) and, where it is installed, obstore. Same ranges, same
threads, interleaved; the figures are the medians over the rounds of dstream, by each engine that is
installed, / best bare loop.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import importlib
import json
import os
import re
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import numpy as np
from botocore.config import Config

from dstream.store import libcurl
from dstream.store.opening import StoreOptions, open_store

KEY = "fetch_limit.bin"
OBJECT_BYTES = 64 * 1024 * 1024
SIZES = (256 * 1024, 1024 * 1024, 4 * 1024 * 1024)
Read = Callable[[int, int], int]


def serve(port: int, certificate: str) -> None:
    """Answer ranged GETs of one object from memory, whatever its name, until killed."""
    body = memoryview(os.urandom(1 << 20) * (OBJECT_BYTES >> 20))
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    for _ in range(1):  # a second process where there are more cores
        if (os.cpu_count() or 1) > 2:
            os.fork()
    while True:
        raw, _ = listener.accept()
        threading.Thread(target=_answer, args=(raw, context, body), daemon=True).start()


def _answer(raw: socket.socket, context: ssl.SSLContext | None, body: memoryview) -> None:
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        connection = raw if context is None else context.wrap_socket(raw, server_side=True)
    except OSError:
        return  # somebody only looked whether the port is open
    lines = connection.makefile("rb")
    while True:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = lines.readline()
            if not line:
                return
            head += line
        found = re.search(rb"(?i)range: bytes=(\d+)-(\d+)", head)
        first, last = (int(found[1]), int(found[2])) if found else (0, OBJECT_BYTES - 1)
        connection.sendall(
            b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\n"
            b'Content-Range: bytes %d-%d/%d\r\nETag: "e"\r\n'
            b"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n"
            % (last + 1 - first, first, last, OBJECT_BYTES)
        )
        connection.sendall(body[first : last + 1])


def by_dstream(endpoint_url: str, bucket: str) -> dict[str, Read]:
    """By each engine that is installed."""

    def reader(engine: str) -> Read:
        options = StoreOptions(
            endpoint_url=endpoint_url, region="us-east-1", addressing="path", engine=engine
        )
        store = open_store(f"s3://{bucket}", options=options)
        return lambda start, stop: len(store.get(KEY, start, stop, expect_etag=None).data)

    engines = ["python"] if isinstance(libcurl.load(), str) else ["native", "python"]
    return {f"dstream {engine}": reader(engine) for engine in engines}


def by_http_client(url: str, bundle: str | None) -> Read:
    """One connection a thread; nothing is checked but the length."""
    local = threading.local()
    parts = urlsplit(url)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    context = ssl.create_default_context(cafile=bundle) if parts.scheme == "https" else None

    def read(start: int, stop: int) -> int:
        connection: http.client.HTTPConnection | None = getattr(local, "connection", None)
        if connection is None:
            connection = local.connection = (
                http.client.HTTPConnection(parts.netloc)
                if context is None
                else http.client.HTTPSConnection(parts.netloc, context=context)
            )
        connection.request("GET", path, headers={"Range": f"bytes={start}-{stop - 1}"})
        return len(connection.getresponse().read())

    return read


def by_obstore(endpoint_url: str, bucket: str) -> Read | None:
    try:
        obstore: Any = importlib.import_module("obstore")
        stores: Any = importlib.import_module("obstore.store")
    except ImportError:
        return None
    insecure = endpoint_url.startswith("https")
    store = stores.S3Store(
        bucket,
        endpoint=endpoint_url,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "allow_invalid_certificates": insecure},
    )
    return lambda start, stop: len(obstore.get_range(store, KEY, start=start, end=stop))


def rate(read: Read, size: int, threads: int, seconds: float) -> float:
    """Bytes a second of reads at random places by so many threads."""
    until_s = time.perf_counter() + seconds

    def work(seed: int) -> int:
        rng, total = np.random.default_rng(seed), 0
        while time.perf_counter() < until_s:
            start = int(rng.integers(0, OBJECT_BYTES - size))
            total += read(start, start + size)
        return total

    began_s = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(work, range(threads)))
    return total / (time.perf_counter() - began_s)


def compare(readers: dict[str, Read], given: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each size of ranges."""
    rows = []
    for size in SIZES:
        turns = [(name, threads) for threads in given.threads for name in readers]
        rates: dict[tuple[str, int], list[float]] = {turn: [] for turn in turns}
        for read in readers.values():
            rate(read, size, max(given.threads), given.seconds / 4)
        for _ in range(given.rounds):
            for name, threads in turns:
                rates[name, threads].append(rate(readers[name], size, threads, given.seconds))
        rows.append({"range_bytes": size, **summary(rates)})
    return rows


def summary(rates: dict[tuple[str, int], list[float]]) -> dict[str, Any]:
    """Medians, and shares of the best bare loop: at the same threads, and each at its best."""
    medians = {turn: statistics.median(got) for turn, got in rates.items()}
    names, threads = {name for name, _ in rates}, {count for _, count in rates}
    best = {name: max(threads, key=lambda count: medians[name, count]) for name in names}
    bare = [name for name in names if not name.startswith("dstream ")]

    def share(name: str, counts: dict[str, int]) -> float:
        rounds = zip(*(rates[other, counts[other]] for other in bare), strict=True)
        best_bare: list[float] = [max(of_round) for of_round in rounds]
        ours = rates[name, counts[name]]
        return statistics.median(own / most for own, most in zip(ours, best_bare, strict=True))

    return {
        "mb_s": [
            {"loop": name, "threads": count, "mb_s": median / 1e6}
            for (name, count), median in medians.items()
        ],
        "to_best_bare": {
            name: {
                "threads": best[name],
                "each_at_its_best": share(name, best),
                **{
                    f"at_{count}": share(name, dict.fromkeys(names, count))
                    for count in sorted(threads)
                },
            }
            for name in sorted(names - set(bare))
        },
    }


def own_server(given: argparse.Namespace, tls: bool, folder: Path) -> list[dict[str, Any]]:
    certificate = str(folder / "both.pem") if tls else ""
    if tls:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
             "-keyout", folder / "key.pem", "-out", folder / "ca.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
        both = (folder / "key.pem").read_text() + (folder / "ca.pem").read_text()
        Path(certificate).write_text(both)
        os.environ["AWS_CA_BUNDLE"] = str(folder / "ca.pem")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, __file__, "--serve", str(port), certificate])
    try:
        endpoint_url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        os.environ.setdefault("AWS_ACCESS_KEY_ID", "key")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "secret")
        bundle = str(folder / "ca.pem") if tls else None
        readers = {
            **by_dstream(endpoint_url, "bucket"),
            "http.client": by_http_client(f"{endpoint_url}/bucket/{KEY}", bundle),
        }
        obstore = by_obstore(endpoint_url, "bucket")
        if obstore is not None:
            readers["obstore"] = obstore
        return [{"tls": tls, **row} for row in compare(readers, given)]
    finally:
        os.environ.pop("AWS_CA_BUNDLE", None)
        server.kill()
        server.wait()


def other_server(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    style = Config(s3={"addressing_style": "path"}, signature_version="s3v4")
    client: Any = boto3.client("s3", endpoint_url=given.endpoint_url, config=style)
    store = open_store(
        f"s3://{given.bucket}", options=StoreOptions(endpoint_url=given.endpoint_url)
    )
    (folder / "data").write_bytes(os.urandom(1 << 20) * (OBJECT_BYTES >> 20))
    store.upload(KEY, folder / "data")
    url = client.generate_presigned_url(
        "get_object",
        Params={"Bucket": given.bucket, "Key": KEY},
        ExpiresIn=int(datetime.timedelta(hours=6).total_seconds()),
    )
    readers = {
        **by_dstream(given.endpoint_url, given.bucket),
        "http.client": by_http_client(url, None),
    }
    obstore = by_obstore(given.endpoint_url, given.bucket)
    if obstore is not None:
        readers["obstore"] = obstore
    try:
        return [{"tls": False, **row} for row in compare(readers, given)]
    finally:
        store.delete_many([(KEY, None)])
        store.close()
        client.close()


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), sys.argv[3])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint-url", default="")
    parser.add_argument("--bucket", default="")
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 4, 16])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if given.endpoint_url:
            rows = other_server(given, Path(name))
        else:
            rows = [row for tls in (False, True) for row in own_server(given, tls, Path(name))]
    if given.json:
        print(json.dumps({"threads": given.threads, "rows": rows}, indent=2))
        return
    for row in rows:
        print(f"{'TLS' if row['tls'] else 'plain'} {row['range_bytes'] >> 10} KiB")
        for name in dict.fromkeys(each["loop"] for each in row["mb_s"]):
            rates = [each["mb_s"] for each in row["mb_s"] if each["loop"] == name]
            shares = row["to_best_bare"].get(name, {})
            print(
                f"  {name:<16}" + "".join(f"{rate:>8.0f}" for rate in rates) + " MB/s",
                *(f"{key} {value:.2f}" for key, value in shares.items() if key != "threads"),
                sep="  ",
            )
    print(f"MB/s with {given.threads} threads; of the best bare loop (target: 0.9)")


if __name__ == "__main__":
    main()
