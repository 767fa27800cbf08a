"""The birth of a repository, and recognising one of a newer format."""

from __future__ import annotations

from dstream.catalog.commit import Committer
from dstream.catalog.log import LogReader
from dstream.errors import AlreadyExistsError, DstreamError, NotFoundError, OutcomeUnknownError
from dstream.format.repository import FORMAT_KEY, check_format, encode_format
from dstream.measure import Purpose
from dstream.store.base import Store
from dstream.store.probe import probe_conditional_put

CREATED_BY = "dstream"


def create_repository(store: Store, log: LogReader, committer: Committer) -> bool:
    """Make a repository unless there is one; False when there was, or a rival was first.

    Root 0 is what makes it one: a creation that was interrupted before is completed.

    Raises:
        UnsafeStoreError: the store ignores conditional writes; nothing was made.
        FormatVersionError: a newer dstream began one here.
        OutcomeUnknownError: the store kept failing; create again.
    """
    if log.newest_seq() is not None:
        return False
    probe_conditional_put(store)
    try:
        store.put_if_absent(FORMAT_KEY, encode_format(CREATED_BY), purpose=Purpose.LOG)
    except (AlreadyExistsError, OutcomeUnknownError) as error:
        _accept_existing(store, error)
    return committer.create()


def refuse_newer_format(store: Store) -> bool:
    """Check the repository's format file, if there is one; False when there is none.

    Needed only where no log was found: a root states its own version.

    Raises:
        FormatVersionError: a newer dstream made the repository.
    """
    try:
        data = store.get(FORMAT_KEY, purpose=Purpose.LOG).data
    except NotFoundError:
        return False
    check_format(data)
    return True


def _accept_existing(store: Store, error: DstreamError) -> None:
    # Left by an interrupted creation, written by a rival's, or our own whose answer was lost:
    # all the same to us as long as we may read it.
    if not refuse_newer_format(store):
        raise error
