"""Checkpoints as an open repository offers them: the functions of this package as methods."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dstream.catalog import Catalog, Generation
from dstream.checkpoint.fetch import THREADS, Fetched, fetch
from dstream.checkpoint.progress import Progress
from dstream.checkpoint.publish import Published, publish
from dstream.measure import Meter

if TYPE_CHECKING:
    from dstream.checkpoint.state import Loaded

Path = str | os.PathLike[str]


class RepoCheckpoints:
    """What can be done with checkpoints; see :mod:`dstream.checkpoint`."""

    catalog: Catalog
    meter: Meter

    def publish(
        self,
        path: Path,
        name: str,
        *,
        attrs: Mapping[str, object] | None = None,
        step: int | None = None,
        message: str = "",
        promote: str | None = None,
        idempotency_key: str | None = None,
        loader_state: Mapping[str, object] | None = None,
        follow: bool = False,
        threads: int = THREADS,
        progress: Progress | None = None,
    ) -> Published:
        """Make the files at ``path`` the next generation; see :func:`dstream.checkpoint.publish`.

        Raises:
            DstreamError: nothing was committed, unless it is an ``OutcomeUnknownError``.
        """
        return publish(
            self.catalog,
            path,
            name,
            attrs=attrs,
            step=step,
            message=message,
            promote=promote,
            idempotency_key=idempotency_key,
            loader_state=loader_state,
            follow=follow,
            threads=threads,
            progress=progress,
            meter=self.meter,
        )

    def fetch(
        self,
        reference: str,
        dest: Path,
        *,
        layout: str = "plain",
        replace: bool = False,
        threads: int = THREADS,
        progress: Progress | None = None,
        sync: bool = True,
    ) -> Fetched:
        """Put a checkpoint into a folder, whole or not; see :func:`dstream.checkpoint.fetch`.

        Raises:
            DstreamError: there is nothing new at ``dest``.
        """
        return fetch(
            self.catalog,
            reference,
            dest,
            layout=layout,
            replace=replace,
            threads=threads,
            progress=progress,
            meter=self.meter,
            sync=sync,
        )

    def save(self, state: Mapping[str, Any], name: str, *, step: int, **named: Any) -> Generation:
        """Save a training's state; see :func:`dstream.checkpoint.save`, which has all arguments.

        Raises:
            DstreamError: nothing became visible.
        """
        from dstream.checkpoint.state import save

        return save(state, self.catalog, name, step=step, **named)

    def load(self, state: dict[str, Any], reference: str, **named: Any) -> Loaded:
        """Load a state in place; see :func:`dstream.checkpoint.load`, which has all arguments.

        Raises:
            DstreamError: the state may be filled in part.
        """
        from dstream.checkpoint.state import load

        return load(state, self.catalog, reference, **named)
