"""What a dataset holds already: its files, what it quarantined, and whose keys are taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dstream.errors import CorruptDataError
from dstream.format.manifest import Manifest, Part, TableRef
from dstream.format.root import sha256_hex
from dstream.format.tables import Columns, read_table
from dstream.ingest.journal import TRANSIENT, Covered
from dstream.ingest.rows import listed
from dstream.ingest.scan import Unit
from dstream.measure import Purpose
from dstream.store.base import Store

Identity = tuple[str | None, int, str, str]
"""(checksum, size, source URI, ETag) of a sample's video file."""


def same_content(left: Identity, right: Identity) -> bool:
    """Whether two files are the same: equal checksums, or the same unchanged source object."""
    if left[0] is not None and right[0] is not None:
        return left[:2] == right[:2]
    return left[1:] == right[1:]


def load_table(store: Store, ref: TableRef, columns: Sequence[str] | None = None) -> Columns:
    """Columns of a stored table, its bytes checked.

    Raises:
        CorruptDataError: size, hash or number of rows differ from the manifest's.
    """
    data = store.get(ref.key, purpose=Purpose.TABLE).data
    if len(data) != ref.size_bytes or sha256_hex(data) != ref.sha256:
        raise CorruptDataError(
            f"table {ref.key}: {len(data)} bytes that are not those the manifest names",
            key=ref.key,
        )
    return read_table(data, columns, rows=ref.rows)


@dataclass(slots=True)
class Known:
    """Source objects that a generation holds or has refused, by source URI."""

    stored: dict[str, tuple[int, str]] = field(default_factory=dict)
    """URI -> (size, ETag) of stored files."""
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The same of quarantined ones whose reason will not pass."""


def load_known(store: Store, manifest: Manifest | None, layout: str | None = None) -> Known:
    """Read the file and quarantine tables of a generation, or of its parts of one layout."""
    known = Known()
    for part in manifest.parts if manifest else ():
        if layout not in (None, part.layout):
            continue
        files = load_table(store, part.files, ["source_uri", "size_bytes", "etag"])
        for uri, size, etag in zip(*files.values(), strict=True):
            known.stored[uri] = (int(size), etag)
        if part.quarantine is None:
            continue
        names = ["source_uri", "size_bytes", "etag", "reason"]
        for uri, size, etag, reason in zip(
            *load_table(store, part.quarantine, names).values(), strict=True
        ):
            if reason not in TRANSIENT:
                known.refused[uri] = (int(size), etag)
    return known


@dataclass(frozen=True, slots=True)
class Todo:
    """Units by what is to be done with them."""

    new: tuple[Unit, ...]
    resumed: tuple[Unit, ...]
    """An earlier run of this session has finished them."""
    unchanged: tuple[Unit, ...]
    changed: tuple[str, ...]
    """Names of files that differ from what the dataset holds under the same name."""


def sort_units(
    units: Iterable[Unit],
    source_url: str,
    known: Known,
    covered: dict[str, Covered],
    *,
    retry_quarantined: bool,
    replace: bool,
) -> Todo:
    """What is new, what is done, and what has changed. Pure.

    Args:
        units: of the listing.
        source_url: where they lie.
        known: what the dataset holds.
        covered: what an earlier run of this session has finished.
        retry_quarantined: look again at what the dataset has quarantined.
        replace: take changed units as new ones.
    """
    new: list[Unit] = []
    resumed: list[Unit] = []
    unchanged: list[Unit] = []
    changed: list[str] = []
    for unit in units:
        faults = _changes(unit, source_url, known)
        if faults == []:
            unchanged.append(unit)
        elif faults and not replace:
            changed += faults
        else:
            refused = not retry_quarantined and all(
                known.refused.get(f"{source_url}/{info.key}") == (info.size_bytes, info.etag)
                for info in unit.videos
            )
            done = covered.get(unit.stem)
            if refused:
                unchanged.append(unit)
            elif done is not None and done.objects == tuple(listed(i) for i in unit.objects):
                resumed.append(unit)
            else:
                new.append(unit)
    return Todo(tuple(new), tuple(resumed), tuple(unchanged), tuple(changed))


def _changes(unit: Unit, source_url: str, known: Known) -> list[str] | None:
    """Files that differ from the stored ones; None where nothing of the unit is stored."""
    stored = [known.stored.get(f"{source_url}/{info.key}") for info in unit.objects]
    if not any(place is not None for place in stored):
        return None
    faults: list[str] = []
    for info, place in zip(unit.objects, stored, strict=True):
        here = (info.size_bytes, info.etag)
        if place is None:
            if known.refused.get(f"{source_url}/{info.key}") != here:
                faults.append(f"{info.key} (new beside a stored video)")
        elif place != here:
            faults.append(info.key)
    return faults


class TakenKeys:
    """Sample keys of manifests and the files behind them. Parts are read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._parts: dict[str, dict[str, Identity]] = {}

    def clashes(self, manifest: Manifest, ours: dict[str, Identity]) -> list[tuple[str, Identity]]:
        """Those of our keys that a manifest holds too, with its identity of the file."""
        found: list[tuple[str, Identity]] = []
        for part in manifest.parts:
            theirs = self._of(part)
            small, large = (ours, theirs) if len(ours) < len(theirs) else (theirs, ours)
            found += [(key, theirs[key]) for key in small if key in large]
        return found

    def _of(self, part: Part) -> dict[str, Identity]:
        if part.samples.sha256 not in self._parts:
            self._parts[part.samples.sha256] = self._load(part)
        return self._parts[part.samples.sha256]

    def _load(self, part: Part) -> dict[str, Identity]:
        samples = load_table(self._store, part.samples, ["key", "streams"])
        file_of_stream = load_table(self._store, part.streams, ["file"])["file"]
        names = ["checksum", "size_bytes", "source_uri", "etag"]
        files = load_table(self._store, part.files, names)
        identities: list[Identity] = [
            (checksum, int(size), uri, etag)
            for checksum, size, uri, etag in zip(*(files[name] for name in names), strict=True)
        ]
        try:
            return {
                key: identities[int(file_of_stream[int(streams[0])])]
                for key, streams in zip(samples["key"], samples["streams"], strict=True)
            }
        except IndexError as error:
            raise CorruptDataError(
                f"tables of {part.samples.key}: a sample refers to rows that are not there",
                key=part.samples.key,
            ) from error
