"""The lifecycle as an open repository offers it: the catalog's methods under the same names."""

from __future__ import annotations

from collections.abc import Iterable

from dstream.catalog.catalog import Catalog
from dstream.catalog.gc_report import GcReport, GcSettings
from dstream.catalog.names import check_txn_id
from dstream.catalog.pins import Pinned
from dstream.catalog.verify import VerifyReport
from dstream.format.root import Generation


class RepoLifecycle:
    """What can be done with generations; see :class:`dstream.catalog.lifecycle.Lifecycle`."""

    catalog: Catalog

    def promote(self, reference: str, alias: str, expect: int | str | None = None) -> Generation:
        """Point ``name@alias`` at a generation, if the alias has the expected version now."""
        return self.catalog.promote(reference, alias, expect)

    def generations(self, name: str) -> list[Generation]:
        """Live generations of a name, oldest first."""
        return self.catalog.generations(name)

    def aliases(self, name: str) -> dict[str, int]:
        """Alias -> version of a name."""
        return self.catalog.aliases(name)

    def remove_alias(self, name: str, alias: str, expect: int | str | None = None) -> None:
        """Take an alias away; its generation stays."""
        self.catalog.remove_alias(name, alias, expect)

    def pin(
        self,
        names: Iterable[str] | None = None,
        *,
        pin_id: str | None = None,
        owner: str = "",
        ttl_s: float | None = None,
        seq: int | None = None,
    ) -> Pinned:
        """Keep what is listed now, whatever is retired later; ``.token`` opens it anywhere."""
        return self.catalog.pin(names, pin_id=pin_id, owner=owner, ttl_s=ttl_s, seq=seq)

    def pins(self, *, with_bytes: bool = False) -> list[Pinned]:
        """All pins; with the bytes that each alone keeps alive where they are asked for."""
        return self.catalog.pins(with_bytes=with_bytes)

    def renew(self, pin_id: str, ttl_s: float | None = None) -> Pinned:
        """Let a pin's time begin anew; ConflictError with reason ``pin-lost`` where it is over."""
        return self.catalog.renew(pin_id, ttl_s)

    def unpin(self, pin_id: str) -> None:
        """Give a pin up."""
        self.catalog.unpin(pin_id)

    def retire(self, *references: str) -> list[Generation]:
        """Take generations out of the listing; collection deletes what no pin keeps."""
        return self.catalog.retire(*references)

    def gc(self, settings: GcSettings | None = None) -> GcReport:
        """Give up what nothing keeps, and delete what was given up long enough ago."""
        return self.catalog.gc(settings)

    def verify(self, *, deep: bool = False) -> VerifyReport:
        """Look for damage in the log and in everything that is kept."""
        return self.catalog.verify(deep=deep)

    def resolve_txn(self, txn_id: str, slot: int | None = None) -> bool:
        """Settle a commit whose outcome was unknown; True when it is in the log.

        Without its ``slot``, which the error names too, the whole log is read.
        """
        return self.catalog.resolve_txn(check_txn_id(txn_id), slot)
