"""The first gap: how fast, how far and how trustworthy a store is from here."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dstream.clock import Clock
from dstream.diagnose.finding import Finding, Gap, Page, Verdict, graded
from dstream.errors import NotFoundError, PermissionDeniedError, UnsafeStoreError
from dstream.measure import Purpose, Snapshot
from dstream.store.base import ObjectInfo, Store
from dstream.store.options import FAST_EXTRA, LACKS_FAST, engines_used
from dstream.store.probe import probe_conditional_put
from dstream.units import KIB, MIB, format_bytes, format_duration

THREADS = 16
_LISTED = 1000
_ROUND_TRIPS = 20
_SMALL_BYTES = 4 * KIB
_RANGE_BYTES = MIB
_SKEW_S = 60.0


@dataclass(frozen=True, slots=True)
class StoreChecks:
    """Measures one store by reading what lies in it; it is written to only when told to.

    Args:
        store: without retries, so that failures show.
        clock: measures.
        seconds: how long each rate is measured.
    """

    store: Store
    clock: Clock
    seconds: float = 2.0

    def run(self, page: Page, *, write: bool) -> None:
        """Add a line for every check."""
        listed = self._list(page)
        largest = max(listed or (), key=lambda info: info.size_bytes, default=None)
        if largest is None or largest.size_bytes == 0:
            told, remedy = "there is no object to read", _NEED_OBJECT
            if listed is None:
                told, remedy = "what there is to read could not be listed", ""
            for name in ("round trip", "one stream", f"{THREADS} streams", "requests"):
                page.add(Finding(Gap.STORE, name, told, Verdict.UNKNOWN, remedy))
        else:
            remedy = "look at the error; the other lines need this one"
            with page.check(Gap.STORE, "round trip", remedy):
                self._round_trip(page, largest)
                self._rates(page, largest)
        with page.check(Gap.STORE, "conditional writes", "see the error"):
            self._conditional(page, write)

    def _list(self, page: Page) -> list[ObjectInfo] | None:
        """Some objects; None, and a line that says why, where the listing failed."""
        began_s = self.clock.monotonic_s()
        listed: list[ObjectInfo] | None = None
        with page.check(Gap.STORE, "listing", "check the URL, the credentials and the endpoint"):
            try:
                found = list(self.store.list(limit=_LISTED, purpose=Purpose.LISTING))
            except (PermissionDeniedError, NotFoundError) as error:
                is_denied = isinstance(error, PermissionDeniedError)
                is_s3 = self.store.url.startswith("s3://")
                remedy = "check the URL" if is_s3 else "check the path"
                if is_denied:
                    remedy = "check the owner and mode of the folder"
                if is_denied and is_s3:
                    remedy = "check the credentials; the role needs s3:ListBucket"
                page.add(Finding(Gap.STORE, "listing", str(error), Verdict.BAD, remedy))
                return listed
            took = format_duration(self.clock.monotonic_s() - began_s)
            keys = [info.key.encode() for info in found]
            ordered = keys == sorted(keys)
            told = f"{len(found):,} objects in {took}, {'in' if ordered else 'NOT in'} order"
            verdict = Verdict.GOOD if ordered else Verdict.WEAK
            remedy = "" if ordered else "listings are sorted here; an S3 Express bucket does so"
            page.add(Finding(Gap.STORE, "listing", told, verdict, remedy))
            listed = found
        return listed

    def _round_trip(self, page: Page, info: ObjectInfo) -> None:
        times_s = []
        skew_s: float | None = None
        for _ in range(_ROUND_TRIPS):
            began_s = self.clock.monotonic_s()
            blob = self.store.get(info.key, 0, 1, purpose=Purpose.OTHER)
            times_s.append(self.clock.monotonic_s() - began_s)
            if blob.info.server_date_s is not None:
                skew_s = blob.info.server_date_s - self.clock.now_s()
        median_ms = 1000 * statistics.median(times_s)
        worst_ms = 1000 * max(times_s)
        page.add(
            Finding(
                Gap.STORE,
                "round trip",
                f"{median_ms:.1f} ms, {worst_ms:.1f} ms at worst of {_ROUND_TRIPS}",
                graded(median_ms, 30, 150),
                "" if median_ms <= 30 else "raise prefetch and fetchers; or read in the region",
                median_ms,
                "ms",
            )
        )
        if skew_s is not None:
            off = abs(skew_s) > _SKEW_S
            page.add(
                Finding(
                    Gap.STORE,
                    "clock",
                    f"{skew_s:+.0f} s from the store's" if off else "agrees with the store's",
                    Verdict.WEAK if off else Verdict.GOOD,
                    "set this machine's clock: S3 refuses requests 15 minutes off" if off else "",
                    skew_s,
                    "s",
                )
            )

    def _rates(self, page: Page, info: ObjectInfo) -> None:
        one = self._rate(info, _RANGE_BYTES, 1)
        slow = "one connection is slow: read with many"
        page.add(_bandwidth("one stream", one, 50e6, 5e6, slow))
        many = self._rate(info, _RANGE_BYTES, THREADS)
        narrow = "the link is narrow: cache what is read again"
        page.add(_bandwidth(f"{THREADS} streams", many, 200e6, 20e6, narrow))
        small = self._rate(info, _SMALL_BYTES, THREADS)
        page.add(
            Finding(
                Gap.STORE,
                "requests",
                f"{small.requests_per_s:,.0f}/s of {format_bytes(small.range_bytes)}"
                f"{_failures(small)}",
                graded(small.requests_per_s, 300, 30),
                "" if small.requests_per_s >= 300 else "long GOPs need fewer requests a clip",
                small.requests_per_s,
                "requests/s",
            )
        )

    def _rate(self, info: ObjectInfo, range_bytes: int, threads: int) -> _Rate:
        """Read ranges of one object, spread over it, for the set time."""
        range_bytes = min(range_bytes, info.size_bytes)
        places = _places(info.size_bytes, range_bytes)
        lock = threading.Lock()
        counts = {"requests": 0, "failed": 0}
        stop_s = self.clock.monotonic_s() + self.seconds
        began_s = self.clock.monotonic_s()

        def read() -> None:
            while self.clock.monotonic_s() < stop_s:
                with lock:
                    start = next(places)
                try:
                    self.store.get(info.key, start, start + range_bytes, purpose=Purpose.OTHER)
                    outcome = "requests"
                except Exception:  # whatever it was: the line tells how many failed
                    outcome = "failed"
                with lock:
                    counts[outcome] += 1

        _together(read, threads)
        took_s = max(self.clock.monotonic_s() - began_s, 1e-9)
        done = counts["requests"]
        return _Rate(range_bytes, done / took_s, done * range_bytes / took_s, counts["failed"])

    def _conditional(self, page: Page, write: bool) -> None:
        name = "conditional writes"
        if not write:
            page.add(
                Finding(
                    Gap.STORE,
                    name,
                    "not tried: nothing is written without --write",
                    Verdict.UNKNOWN,
                    "give --write to prove that it can hold a repository",
                )
            )
            return
        try:
            probe_conditional_put(self.store)
        except UnsafeStoreError as error:
            remedy = "keep repositories elsewhere; reading from it is safe"
            page.add(Finding(Gap.STORE, name, str(error), Verdict.BAD, remedy))
        except PermissionDeniedError as error:
            remedy = "a reader needs none; a publisher needs s3:PutObject"
            page.add(Finding(Gap.STORE, name, str(error), Verdict.UNKNOWN, remedy))
        else:
            told = "honoured: of two writers one wins"
            page.add(Finding(Gap.STORE, name, told, Verdict.GOOD))


@dataclass(frozen=True, slots=True)
class _Rate:
    range_bytes: int
    requests_per_s: float
    bytes_per_s: float
    failed: int


_NEED_OBJECT = "name a folder or prefix with some files in it"
_NEED_LARGE = f"name one with an object of {format_bytes(_RANGE_BYTES)} or more"


def _bandwidth(name: str, rate: _Rate, good: float, weak: float, remedy: str) -> Finding:
    """How wide a link is; pieces smaller than wanted say how far it is, and nothing of that."""
    told = f"{format_bytes(rate.bytes_per_s)}/s in ranges of {format_bytes(rate.range_bytes)}"
    told += _failures(rate)
    if rate.range_bytes < _RANGE_BYTES:
        told += ", the largest object: too small to tell the link's width"
        return Finding(Gap.STORE, name, told, Verdict.UNKNOWN, _NEED_LARGE)
    enough = rate.bytes_per_s >= good
    verdict = graded(rate.bytes_per_s, good, weak)
    return Finding(
        Gap.STORE, name, told, verdict, "" if enough else remedy, rate.bytes_per_s, "B/s"
    )


def _failures(rate: _Rate) -> str:
    return f", {rate.failed:,} failed" if rate.failed else ""


def _places(size_bytes: int, range_bytes: int) -> Iterator[int]:
    """Starts of ranges, one after the other through the object, again and again."""
    while True:
        yield from range(0, max(1, size_bytes - range_bytes + 1), range_bytes)


def _together(work: Callable[[], None], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(work) for _ in range(threads)]:
            future.result()


def credentials_finding(page: Page, clock: Clock) -> None:
    """How long the credentials that boto3 finds here will last."""
    remedy = "AWS_PROFILE, AWS_ACCESS_KEY_ID, ~/.aws/credentials, or an instance's role"
    with page.check(Gap.STORE, "credentials", remedy):
        import botocore.session

        found = botocore.session.Session().get_credentials()
        if found is None:
            told = "none: only public buckets can be read"
            page.add(Finding(Gap.STORE, "credentials", told, Verdict.ABSENT, remedy))
            return
        expiry = getattr(found, "_expiry_time", None)
        if expiry is None:
            refreshed = hasattr(found, "refresh_needed")
            told = f"from {found.method}, " + ("refreshed by itself" if refreshed else "lasting")
            page.add(Finding(Gap.STORE, "credentials", told, Verdict.GOOD))
            return
        left_s = expiry.timestamp() - clock.now_s()
        page.add(
            Finding(
                Gap.STORE,
                "credentials",
                f"from {found.method}, for {format_duration(max(0.0, left_s))}, then refreshed",
                Verdict.GOOD if left_s > 0 else Verdict.BAD,
                "" if left_s > 0 else "they have expired: log in again",
                left_s,
                "s",
            )
        )


def engine_finding(page: Page, counts: Snapshot) -> None:
    """What made the ranged reads, after some were made."""
    used = engines_used(counts.sums)
    lacks_fast = used.pop(LACKS_FAST, 0) > 0
    fallbacks = [f", {why}" for why in counts.event("fallback") if why.startswith("engine:")]
    if used:
        told = ", ".join(used) + (" over TLS" if lacks_fast else "") + "".join(fallbacks)
        verdict = Verdict.WEAK if lacks_fast else Verdict.GOOD
        page.add(Finding(Gap.STORE, "engine", told, verdict, FAST_EXTRA if lacks_fast else ""))
