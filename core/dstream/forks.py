"""Locks and connections that must not be shared with a forked child.

A lock that another thread held at the moment of the fork stays locked in the child for ever,
and a socket used by parent and child mixes their answers. Everything that holds either
registers here and is told, in the child, to make new ones.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Something that can drop its locks and connections and go on with new ones."""

    def renew(self) -> None:
        """Replace locks and forget connections, without closing those of the parent."""
        ...


_RENEWABLE: weakref.WeakValueDictionary[int, Renewable] = weakref.WeakValueDictionary()


def renew_after_fork(item: Renewable) -> None:
    """Call ``item.renew()`` in every child forked while ``item`` lives."""
    _RENEWABLE[id(item)] = item


class Preparable(Protocol):
    """Something that has to be read before a fork, since a child cannot."""

    def make_ready(self) -> None:
        """Read what is missing; does nothing where nothing is."""
        ...


_PREPARABLE: weakref.WeakValueDictionary[int, Preparable] = weakref.WeakValueDictionary()


def ready_before_fork(item: Preparable) -> None:
    """Call ``item.make_ready()`` before every fork while ``item`` lives."""
    _PREPARABLE[id(item)] = item


def _make_all_ready() -> None:
    for item in list(_PREPARABLE.values()):
        item.make_ready()


def _renew_all() -> None:
    for item in list(_RENEWABLE.values()):
        item.renew()


os.register_at_fork(before=_make_all_ready, after_in_child=_renew_all)
