"""``dstream proxy``: what any command does to its bucket."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dstream.errors import InvalidInputError, NotFoundError, StorageError
from dstream_cli.options import (
    EXIT_INTERRUPTED,
    Debug,
    EgressPrice,
    GetPrice,
    Json,
    PutPrice,
    Quiet,
    common,
    epilog,
)
from dstream_cli.plain import counted, sparkline
from dstream_cli.render import Facts, Part, Table
from dstream_cli.usage import parsed

if TYPE_CHECKING:
    from dstream.diagnose.traffic import TrafficReport

NAME = "proxy"
SUMMARY = "Run any command and report what it does to its bucket."
EPILOG = epilog(
    "dstream proxy -- python train.py",
    "dstream proxy --delay-ms 20 --bandwidth 200MB -- python train.py",
    "dstream proxy --fault 503=5% --fault stall=1%:10s -- python train.py",
    "dstream proxy --upstream http://127.0.0.1:9000 --json -- aws s3 ls s3://b",
    codes=(0, 1, 2, 10, 130),
)
SCHEMA = "dstream.proxy/1"
_OUTCOMES = {
    "upstream": "without an answer of the server, or not its end",
    "client-gone": "left by the client",
    "bad-upload": "with a body that cannot be passed on",
}
"""Of requests, for people; what was injected has the name that it was asked for by."""


def run(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND ...", help="What to run.", show_default=False)
    ],
    upstream: Annotated[
        str,
        typer.Option(metavar="URL", help="The real server; by default the configured endpoint."),
    ] = "",
    delay_ms: Annotated[
        float, typer.Option(metavar="MS", min=0, help="Add so much to every round trip.")
    ] = 0,
    bandwidth: Annotated[
        str, typer.Option(metavar="SIZE", help="Bytes a second each way, such as 200MB.")
    ] = "",
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=SHARE",
            help="Spoil a share of requests: 503, reset, truncate, stall or corrupt, such as "
            "503=5%. Repeatable.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Which requests are spoiled.")] = 0,
    log: Annotated[
        str, typer.Option(metavar="FILE", help="Write a JSON line for every request.")
    ] = "",
    get_price: GetPrice = 0.0004,
    put_price: PutPrice = 0.005,
    egress_price: EgressPrice = 0.0,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Run a command against a measuring S3 endpoint on this machine, and report what passed.

    The endpoint and a key made for the command are in its environment (AWS_ENDPOINT_URL and the
    like); requests are signed anew with your credentials, which the command does not see. A client
    that is given its endpoint in code must be told to take it from there. Ends with the command's
    own exit code. With --json the command's output goes to stderr.
    """
    from dstream.diagnose.prices import Prices
    from dstream.diagnose.proxy import MeasuringProxy, user_upstream
    from dstream.diagnose.shaping import Shape, parse_fault
    from dstream.units import parse_bytes

    call = common(context, quiet=quiet)
    shape = Shape(
        delay_ms / 1000,
        parsed("--bandwidth", parse_bytes, bandwidth) if bandwidth else None,
        tuple(parsed("--fault", parse_fault, text) for text in fault or ()),
        seed,
    )
    lines = _Lines(log) if log else None
    proxy = MeasuringProxy(user_upstream(upstream or None), shape, log=lines)
    with proxy.serving():
        exit_code = _run(command, proxy.environment(os.environ), to_stderr=json)
        report = proxy.report(Prices(get_price, put_price, egress_price))
    document = {"schema": SCHEMA, "command": command, "exit_code": exit_code, "report": report}
    call.out.result(document, report_parts(report))
    if lines is not None:
        lines.close()
    return exit_code


class _Lines:
    """The file of ``--log``. That a disk fills up costs no request and no report.

    Raises:
        InvalidInputError: it cannot be made.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._error: OSError | None = None
        try:
            self._file = Path(name).open("w", encoding="utf-8")
        except OSError as error:
            raise InvalidInputError(
                f"--log {name}: {error.strerror or error}", path=name
            ) from error

    def write(self, text: str) -> None:
        """Write, until it fails once."""
        try:
            if self._error is None:
                self._file.write(text)
        except OSError as error:
            self._error = error

    def close(self) -> None:
        """End the file.

        Raises:
            StorageError: it is not complete.
        """
        try:
            self._file.close()
        except OSError as error:
            self._error = self._error or error
        if self._error is not None:
            raise StorageError(
                f"--log {self._name}: {self._error.strerror or self._error}; it is not complete",
                path=self._name,
            ) from self._error


def _run(command: list[str], environment: dict[str, str], *, to_stderr: bool) -> int:
    """Run the command to its end; its exit code, or 128 + N where signal N ended it."""
    try:
        child = subprocess.Popen(command, env=environment, stdout=2 if to_stderr else None)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no command {command[0]!r}", command=command[0]) from error
    except OSError as error:
        raise InvalidInputError(f"{command[0]!r} cannot be run: {error.strerror}") from error
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.wait()  # the terminal told it as well; what it did until then is still worth telling
        return EXIT_INTERRUPTED
    return code if code >= 0 else 128 - code


def report_parts(report: TrafficReport) -> list[Part]:
    """The report for people; each number is explained where :class:`TrafficReport` has it."""
    from dstream.diagnose.bench.numerals import dollars
    from dstream.units import format_bytes, format_duration

    if not report.requests:
        return [
            f"No request passed the proxy{_refusals(report)}: the command did not use S3, or its "
            "client takes its endpoint from elsewhere than the environment (AWS_ENDPOINT_URL)."
        ]
    kinds = [
        (
            kind.kind.value,
            f"{kind.requests:,}",
            format_bytes(kind.received_bytes),
            format_bytes(kind.sent_bytes),
            *(f"{1000 * value:,.1f}" for value in (kind.first_byte_p50_s, kind.p50_s, kind.p99_s)),
        )
        for kind in sorted(report.kinds, key=lambda kind: -kind.requests)
    ]
    titles = ("request", ">count", ">received", ">sent", ">first byte ms", ">p50 ms", ">p99 ms")
    facts: list[tuple[str, object]] = [("time", format_duration(report.wall_seconds))]
    if report.objects:
        facts += [
            (
                "reads",
                f"{report.pattern}: {report.whole_reads:,} whole objects, "
                f"{report.sequential_reads:,} in sequence, {report.random_reads:,} elsewhere",
            ),
            (
                "bytes read",
                f"{format_bytes(report.received_bytes)}, of {format_bytes(report.unique_bytes)} "
                f"different ({report.amplification:.2f}x), in {counted(report.objects, 'object')}",
            ),
        ]
    if report.aborted_bytes:
        facts.append(("not finished", f"{format_bytes(report.aborted_bytes)} of cut-off answers"))
    spoiled = {name: count for name, count in report.outcomes.items() if name != "ok"}
    if spoiled:
        facts.append(
            (
                "failed",
                ", ".join(f"{n:,} {_OUTCOMES.get(name, name)}" for name, n in spoiled.items()),
            )
        )
    if report.throttled:
        facts.append(("throttled", counted(report.throttled, "request")))
    if report.refused:
        facts.append(("refused", f"{counted(report.refused, 'request')} with another key"))
    facts += [
        (
            "at once",
            f"{report.concurrency_mean:.1f} requests on average, {report.concurrency_max} at most",
        ),
        ("bytes/s", sparkline(report.timeline_bytes, 40)),
        ("in flight", sparkline(report.timeline_concurrency, 40)),
        (
            "cost",
            f"{dollars(report.dollars)} at ${report.prices.get_per_1000:g} and "
            f"${report.prices.put_per_1000:g} a 1,000, ${report.prices.egress_per_gb:g} a GB",
        ),
        (
            "the proxy",
            f"{report.proxy_cpu_share:.0%} of a core, "
            f"{1000 * report.proxy_cpu_seconds_per_request:.2f} ms of it a request",
        ),
    ]
    parts: list[Part] = [Table(titles, kinds), Facts(facts)]
    if report.proxy_is_limit:
        parts.append("The proxy was at its own limit: these rates are its, not the store's.")
    return parts


def _refusals(report: TrafficReport) -> str:
    if not report.refused:
        return ""
    return f" ({counted(report.refused, 'request')} with another key was refused)"
