"""Walks the four gaps between a bucket and a tensor, on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from dstream.clock import Clock
from dstream.diagnose.disk_checks import DiskChecks
from dstream.diagnose.finding import Finding, Gap, Page, Verdict
from dstream.diagnose.frame_checks import frame_findings
from dstream.diagnose.gpu_checks import gpu_findings
from dstream.diagnose.store_checks import StoreChecks, credentials_finding, engine_finding
from dstream.measure import Meter
from dstream.store.opening import open_store
from dstream.store.options import StoreOptions
from dstream.store.retry import RetryPolicy
from dstream.units import format_bytes


@dataclass(frozen=True, slots=True)
class Examination:
    """What is to be looked at.

    Args:
        url: a bucket, prefix or folder to read from; None leaves the first gap out.
        cache: the directory that a cache would lie in.
        write: the store may be written to, to prove conditional writes.
        seconds: how long each rate is measured.
        options: of the store.
    """

    url: str | None
    cache: Path
    write: bool = False
    seconds: float = 2.0
    options: StoreOptions = field(default_factory=StoreOptions)


def examine(what: Examination, clock: Clock) -> list[Finding]:
    """Every finding, in the order of the gaps. Never raises: what fails is a finding."""
    page = Page()
    with page.check(Gap.MACHINE, "machine"):
        _machine(page)
    if what.url is None:
        told = "no URL was given"
        remedy = "dstream doctor s3://bucket/prefix"
        page.add(Finding(Gap.STORE, "store", told, Verdict.UNKNOWN, remedy))
    else:
        _store(page, what, what.url, clock)
    DiskChecks(what.cache, clock).run(page)
    gpu_findings(page, clock)
    frame_findings(page, clock)
    return page.findings


def _store(page: Page, what: Examination, url: str, clock: Clock) -> None:
    if "://" not in url and Path(url).is_file():
        remedy = "name the folder that it lies in"
        page.add(Finding(Gap.STORE, "store", f"{url} is a file", Verdict.UNKNOWN, remedy))
        return
    if url.lower().startswith("s3:"):
        credentials_finding(page, clock)
    with page.check(Gap.STORE, "store", "check the URL, the credentials and the endpoint"):
        # A failure must show here, and soon; the loader would try again.
        options = replace(what.options, retry=RetryPolicy(attempts=1), read_timeout_s=15.0)
        meter = Meter()
        store = open_store(url, options=options, meter=meter, clock=clock)
        try:
            StoreChecks(store, clock, what.seconds).run(page, write=what.write)
            engine_finding(page, meter.snapshot())
        finally:
            store.close()


def _machine(page: Page) -> None:
    cores = len(os.sched_getaffinity(0))
    limit = cpu_limit(_read("/sys/fs/cgroup/cpu.max"))
    usable = cores if limit is None else min(float(cores), limit)
    told = f"{cores} CPUs" + ("" if usable == cores else f", limited to {usable:g}")
    page.add(Finding(Gap.MACHINE, "CPUs", told, Verdict.GOOD, "", usable, "CPUs"))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    bound = _read("/sys/fs/cgroup/memory.max").strip()
    if bound.isdecimal():
        memory = min(memory, int(bound))
    told = format_bytes(memory)
    page.add(Finding(Gap.MACHINE, "memory", told, Verdict.GOOD, "", float(memory), "B"))


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""  # another kernel, or no cgroup: then nothing limits


def cpu_limit(text: str) -> float | None:
    """CPUs that a cgroup allows, from its ``cpu.max``; None where it sets no bound.

    >>> cpu_limit("150000 100000\\n"), cpu_limit("max 100000\\n"), cpu_limit("")
    (1.5, None, None)
    """
    fields = text.split()
    if len(fields) != 2 or not all(field.isdecimal() for field in fields):
        return None
    return int(fields[0]) / int(fields[1])
