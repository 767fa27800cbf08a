"""Rows of arrays: their bytes are their values, so nothing is decoded."""

from __future__ import annotations

from dstream.media.arrays import write_rows
from dstream.media.decoders.contract import Outcome, Run


class RowsBackend:
    """Copies rows to their places."""

    def decode(self, run: Run, *, skip: bool = True) -> Outcome:
        """See :meth:`Backend.decode`.

        Raises:
            CorruptDataError: a row has another size than its form.
        """
        outcome = Outcome(set(run.places))
        rows = {pts: [out for out, _ in outs] for pts, outs in run.places.items()}
        outcome.missing = write_rows(run.track, run.packets, rows, outcome.tally)
        return outcome
