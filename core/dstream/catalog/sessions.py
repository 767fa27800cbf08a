"""Upload sessions: where bytes go before a commit names them, and what the fence is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dstream.catalog.names import check_session_key
from dstream.errors import AlreadyExistsError, NotFoundError, OutcomeUnknownError
from dstream.format.repository import (
    SessionRecord,
    decode_session,
    encode_session,
    session_key,
)
from dstream.measure import Purpose
from dstream.store.base import Store

SHARED_SESSION = "k-"
"""How ids of sessions begin that have a key, so that several jobs and runs may publish of them."""


@dataclass(frozen=True, slots=True)
class Session:
    """One upload on its way to a commit. Plain values: give it to as many jobs as you like."""

    session_id: str
    base_seq: int
    """The head when it began. Collection fences sessions by this number, never by time."""
    key: str | None = None
    """The name by which jobs share it and a later run takes it up again."""

    @property
    def data_prefix(self) -> str:
        """Where its bytes go; ends with ``/``. Names below must be unique and written once."""
        return f"data/{self.base_seq:016d}/{self.session_id}/"

    @property
    def manifest_prefix(self) -> str:
        """Where its manifests go; ends with ``/``."""
        return f"_ds/man/{self.base_seq:016d}/{self.session_id}/"


def open_session(store: Store, key: str, base_seq: int, new_id: Callable[[], str]) -> Session:
    """The session recorded under ``key``, recorded now if there is none.

    Of concurrent callers one records it, and all get the same session.

    Raises:
        InvalidInputError: the key cannot be one.
    """
    where = session_key(check_session_key(key))
    record = _recorded(store, where)
    if record is None:
        proposed = SessionRecord(f"{SHARED_SESSION}{new_id()}", base_seq)
        try:
            store.put_if_absent(where, encode_session(proposed), purpose=Purpose.LOG)
            record = proposed
        except (AlreadyExistsError, OutcomeUnknownError) as error:
            # Whatever is there now is the session, whoever wrote it.
            record = _recorded(store, where)
            if record is None:
                raise error
    return Session(record.session_id, record.base_seq, key)


def _recorded(store: Store, where: str) -> SessionRecord | None:
    try:
        data = store.get(where, purpose=Purpose.LOG).data
    except NotFoundError:
        return None
    return decode_session(data, where)
