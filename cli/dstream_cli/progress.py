"""Progress on stderr: one redrawn line on a terminal, else a line now and then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from dstream.clock import Clock
from dstream.units import format_bytes, format_duration
from dstream_cli.render import Output

if TYPE_CHECKING:
    from dstream.checkpoint import CopyProgress

_REDRAW_S = 0.1
_LINE_EVERY_S = 10.0
_RATE_OVER_S = 15.0


class ProgressLine:
    """Shows how far work is, how fast it goes and when it will end. Close it to end the line."""

    def __init__(self, out: Output, clock: Clock, verb: str) -> None:
        self._out = out
        self._clock = clock
        self._verb = verb
        self._redraws = out.stderr.isatty() and not out.quiet
        self._silent = out.quiet or (out.json and not self._redraws)
        self._interval_s = _REDRAW_S if self._redraws else _LINE_EVERY_S
        self._shown_s = clock.monotonic_s()
        self._history: deque[tuple[float, float]] = deque()
        self._drawn = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn:
            print("\r" + " " * self._drawn + "\r", end="", file=self._out.stderr, flush=True)
            self._drawn = 0

    def update(
        self, *, done: int, total: int | None, done_bytes: int, total_bytes: int | None, what: str
    ) -> None:
        """Tell how far the work is. Cheap: most calls only note the time.

        Args:
            done: items finished.
            total: items there are; None while unknown.
            done_bytes: bytes finished.
            total_bytes: bytes there are; None while unknown.
            what: what the items are called, or what goes on, for example ``files``.
        """
        now_s = self._clock.monotonic_s()
        measure = float(done_bytes or done)
        self._history.append((now_s, measure))
        while len(self._history) > 2 and now_s - self._history[0][0] > _RATE_OVER_S:
            self._history.popleft()
        if self._silent or now_s - self._shown_s < self._interval_s:
            return
        self._shown_s = now_s
        goal = total_bytes if done_bytes else total
        self._draw(
            f"{self._verb}: {_of(f'{done:,}', None if total is None else f'{total:,}')} {what}"
            f"{self._amounts(done_bytes, total_bytes, goal, measure)}"
        )

    def _amounts(
        self, done_bytes: int, total_bytes: int | None, goal: int | None, measure: float
    ) -> str:
        (then_s, before), (now_s, after) = self._history[0], self._history[-1]
        rate = (after - before) / (now_s - then_s) if now_s > then_s else 0.0
        text = ""
        if done_bytes:
            total = None if total_bytes is None else format_bytes(total_bytes)
            text += f", {_of(format_bytes(done_bytes), total)}"
        if rate > 0:
            text += f", {format_bytes(rate)}/s" if done_bytes else f", {rate:.3g}/s"
            if goal is not None and goal > measure:
                text += f", {format_duration((goal - measure) / rate)} left"
        return text

    def _draw(self, line: str) -> None:
        if self._redraws:
            line = line[:78]
            print("\r" + line.ljust(self._drawn), end="", file=self._out.stderr, flush=True)
            self._drawn = len(line)
        else:
            print(line, file=self._out.stderr, flush=True)


def _of(done: str, total: str | None) -> str:
    return done if total is None else f"{done} of {total}"


def copy_line(line: ProgressLine) -> Callable[[CopyProgress], None]:
    """Shows the state of a publish or fetch on ``line``."""

    def show(now: CopyProgress) -> None:
        line.update(
            done=now.files_done,
            total=now.files_total,
            done_bytes=now.bytes_done,
            total_bytes=now.bytes_total,
            what="files",
        )

    return show
