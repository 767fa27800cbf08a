"""A run keeps the pin that it reads through: renewed in the background, in good time."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass

from dstream.catalog import Catalog
from dstream.catalog.tokens import Token
from dstream.clock import Clock
from dstream.errors import ConflictError, DstreamError, DstreamWarning, PermissionDeniedError
from dstream.forks import renew_after_fork
from dstream.measure import Meter
from dstream.store.base import Store

_PARTS = 4
"""A pin is renewed when this part of its time is over; after a failure, four times as often."""


@dataclass(frozen=True, slots=True)
class FrozenView:
    """What clips are read through: one root of a repository, by a token. Can be pickled."""

    token: str
    store: Store
    """The repository."""
    clock: Clock

    @classmethod
    def of(cls, catalog: Catalog, clock: Clock) -> FrozenView | None:
        """What an opened catalog shows; None where it follows the newest root."""
        token = catalog.token
        return None if token is None else cls(token, catalog.store, clock)

    @property
    def pin_id(self) -> str:
        """The pin that keeps the root; empty where the token is of a root alone."""
        return Token.parse(self.token).pin_id


class PinKeeper:
    """Renews the pin of a view from a thread of its own, until it is closed.

    A pin without a time needs nothing and costs one look. What cannot be renewed never stops the
    run: it is counted as an event ``pin``, and told as a warning of the consumer's thread.

    Args:
        view: through which the clips are read.
        meter: gets ``renewed``, ``failed``, ``no-permission`` and ``lost``.
    """

    def __init__(self, view: FrozenView, meter: Meter) -> None:
        self._view, self._meter = view, meter
        self._catalog: Catalog | None = None
        self._ttl_s = 0.0
        self._renewed_s = view.clock.monotonic_s()
        self._late_told = False
        self._notices: list[str] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dstream-pin", daemon=True)
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, to which the thread did not come along."""
        self._closed = threading.Event()

    def start(self) -> None:
        """Renew now, and then again and again."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end, without waiting for it."""
        self._closed.set()

    def close(self) -> None:
        """Stop the thread and wait for a renewal in hand. The pin stays."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()

    def notices(self) -> list[str]:
        """What the consumer has to be told, once."""
        told, self._notices = self._notices, []
        return told

    def warn(self) -> None:
        """Tell the consumer, in its own thread, whose loop asked for a batch or closed."""
        for notice in self.notices():
            warnings.warn(notice, DstreamWarning, stacklevel=3)

    def _run(self) -> None:
        wait_s = self.renew_once()
        while wait_s is not None and not self._closed.wait(wait_s):
            wait_s = self.renew_once()

    def renew_once(self) -> float | None:
        """Renew, if the pin has a time; seconds until it is due again, None for never."""
        clock, pin_id = self._view.clock, self._view.pin_id
        try:
            if self._catalog is None:
                self._catalog = Catalog.open(self._view.store, clock, meter=self._meter)
            pin = self._catalog.head().pins.get(pin_id)
            if pin is not None and pin.ttl_s is None:
                return None
            renewed = self._catalog.renew(pin_id).pin
        except ConflictError as error:
            if error.facts.get("reason") == "pin-lost":
                self._tell("lost", f"the pin of this run is lost: {error}")
                return None
            return self._failed(error)
        except PermissionDeniedError as error:
            self._tell(
                "no-permission",
                f"pin {pin_id!r} is not renewed by this run, which may not write to "
                f"{self._view.store.url}: {error}. Have a role that may put objects renew it in "
                f"time: dstream renew {pin_id}",
            )
            return None
        except DstreamError as error:
            return self._failed(error)
        self._meter.event("pin", "renewed")
        self._renewed_s, self._late_told = clock.monotonic_s(), False
        self._ttl_s = renewed.ttl_s or 0.0
        return self._ttl_s / _PARTS if self._ttl_s else None

    def _tell(self, outcome: str, notice: str) -> None:
        self._meter.event("pin", outcome)
        self._notices.append(notice)

    def _failed(self, error: DstreamError) -> float:
        """The environment failed: try again soon, and say so when half of the time is over."""
        self._meter.event("pin", "failed")
        since_s = self._view.clock.monotonic_s() - self._renewed_s
        if since_s > self._ttl_s / 2 and not self._late_told:
            self._late_told = True
            self._notices.append(
                f"pin {self._view.pin_id!r} could not be renewed for {since_s:.0f} s, of "
                f"{self._ttl_s:.0f} s that it lasts: {error}. It is tried again"
            )
        return max(1.0, self._ttl_s / _PARTS**2)
