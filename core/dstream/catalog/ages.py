"""How old commits are, by the store's clock alone."""

from __future__ import annotations

from dstream.errors import NotFoundError
from dstream.format.root import LOG_PREFIX, log_key, log_seq
from dstream.measure import Purpose
from dstream.store.base import Store

TIME_KEY = "_ds/probe/time"
_PAGE = 1000


def store_time_s(store: Store) -> float:
    """The store's clock now, seconds since the epoch: when it says that it wrote an object."""
    info = store.put(TIME_KEY, b"", purpose=Purpose.LOG)
    if info.last_modified_s is None:
        info = store.head(TIME_KEY, purpose=Purpose.LOG)
    return 0.0 if info.last_modified_s is None else info.last_modified_s


class LogAges:
    """Ages of the log's roots: when the store wrote them. No writer's clock is consulted.

    A root that was cleared later looks younger than it is, which only ever keeps more.

    Args:
        store: of the repository.
        head_seq: the newest root.
        now_s: the store's clock.
    """

    def __init__(self, store: Store, head_seq: int, now_s: float) -> None:
        self._store = store
        self._head = head_seq
        self._now_s = now_s
        self._written: dict[int, float] = {}
        if store.capabilities.ordered_list:
            for info in store.list(LOG_PREFIX, limit=_PAGE, purpose=Purpose.LOG):
                seq = log_seq(info.key)
                if seq is not None and info.last_modified_s is not None:
                    self._written[seq] = info.last_modified_s

    def age_s(self, seq: int) -> float:
        """Seconds since root ``seq`` was written; 0 where the store does not say."""
        if seq not in self._written:
            try:
                info = self._store.head(log_key(seq), purpose=Purpose.LOG)
            except NotFoundError:
                return 0.0
            written_s = info.last_modified_s
            self._written[seq] = self._now_s if written_s is None else written_s
        return max(0.0, self._now_s - self._written[seq])

    def newest_older_than(self, age_s: float, from_seq: int = 0) -> int | None:
        """The newest root from ``from_seq`` on that is at least ``age_s`` old; None: none is.

        Some ten requests at most, however long the log is, and none for a short one.
        """
        low, high = from_seq, self._head
        if low > high or self.age_s(low) < age_s:
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if self.age_s(middle) >= age_s:
                low = middle
            else:
                high = middle - 1
        return low
