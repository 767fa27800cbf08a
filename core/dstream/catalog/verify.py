"""Looking for damage: is everything there that the catalog promises, and is it what it was?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

import xxhash

from dstream.catalog.contents import Contents
from dstream.catalog.log import Head, LogReader, check_chain
from dstream.catalog.publishing import ManifestObjects
from dstream.catalog.verify_media import check_part
from dstream.errors import CorruptDataError, DstreamError, NotFoundError
from dstream.format.manifest import Manifest, Part
from dstream.format.references import decode_any_manifest, referenced_objects
from dstream.format.refs import ObjectRef
from dstream.format.root import Generation, Root, Tombstone
from dstream.measure import Purpose
from dstream.store.base import Store
from dstream.store.hashing import object_sha256

MAX_DAMAGES = 1000
"""Damages that are told one by one."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as the catalog says."""

    where: str
    """A key, or ``name@v7``."""
    what: str


@dataclass(slots=True)
class VerifyReport:
    """What was looked at, and what was wrong."""

    deep: bool = False
    roots: int = 0
    cleared_roots: int = 0
    generations: int = 0
    objects: int = 0
    bytes_read: int = 0
    """Of objects whose hashes were computed."""
    damages: list[Damage] = field(default_factory=list)
    damage_count: int = 0

    @property
    def is_whole(self) -> bool:
        """Nothing is wrong."""
        return not self.damage_count

    def add(self, where: str, what: str) -> None:
        """Count one damage."""
        self.damage_count += 1
        if len(self.damages) < MAX_DAMAGES:
            self.damages.append(Damage(where, what))


class Verifier:
    """One look at a repository. Every object is looked at once, however many share it."""

    def __init__(
        self, store: Store, log: LogReader, manifests: ManifestObjects, *, deep: bool
    ) -> None:
        self._store = store
        self._log = log
        self._manifests = manifests
        self._contents = Contents(store, manifests)
        self._deep = deep
        self._seen: set[int] = set()
        self.report = VerifyReport(deep)

    def run(self, root: Root, log_limit: int | None) -> VerifyReport:
        """Check the log below ``root``, and all generations that are to be kept."""
        self._check_log(root, log_limit)
        try:
            for generation in root.all_records():
                if generation.condemned_seq is None:
                    self._check_generation(generation)
        except (NotFoundError, CorruptDataError) as error:
            self.report.add("catalog", str(error))
        for pin_id, pin in root.pins.items():
            self._check_pin(pin_id, pin.seq)
        return self.report

    def _check_log(self, root: Root, limit: int | None) -> None:
        later: Head | None = None
        stop = -1 if limit is None else max(-1, root.seq - limit)
        for seq in range(root.seq, stop, -1):
            self.report.roots += 1
            try:
                found = self._log.try_read(seq)
                if found is None:
                    raise CorruptDataError(f"number {seq} of the log is missing")
                if isinstance(found, Tombstone):
                    self.report.cleared_roots += 1
                    later = None
                    continue
                if later is not None:
                    check_chain(found, later)
                later = found
            except CorruptDataError as error:
                self.report.add(f"log number {seq}", str(error))
                later = None

    def _check_pin(self, pin_id: str, seq: int) -> None:
        try:
            for ref in self._log.read(seq).root.shards.refs:
                self._log.shards.load(ref)
        except (NotFoundError, CorruptDataError) as error:
            self.report.add(f"pin {pin_id}", str(error))

    def _check_generation(self, generation: Generation) -> None:
        self.report.generations += 1
        where = f"{generation.label}, {generation.manifest.key}"
        try:
            data = self._manifests.read_bytes(generation.manifest)
            manifest = decode_any_manifest(generation.kind, data)
        except (NotFoundError, CorruptDataError) as error:
            self.report.add(where, str(error))
            return
        named = [ref for ref in referenced_objects(manifest) if self._is_new(ref.key)]
        self._check_objects(generation.label, named)
        if isinstance(manifest, Manifest):
            for part in manifest.parts:
                self._check_part(generation.label, part)

    def _check_objects(self, label: str, refs: list[ObjectRef]) -> None:
        wanted = {ref.key: ref for ref in refs}
        sizes = self._sizes(wanted)
        for ref in refs:
            self.report.objects += 1
            if ref.key not in sizes:
                self.report.add(ref.key, f"is gone; {label} needs it")
            elif sizes[ref.key] != ref.size_bytes:
                self.report.add(
                    ref.key,
                    f"has {sizes[ref.key]} bytes, {label} says {ref.size_bytes}",
                )
            elif self._deep:
                self._check_hash(label, ref)

    def _check_hash(self, label: str, ref: ObjectRef) -> None:
        try:
            found = object_sha256(self._store, ref.key, ref.size_bytes)
        except DstreamError as error:
            self.report.add(ref.key, f"cannot be read: {error}")
            return
        self.report.bytes_read += ref.size_bytes
        if found != ref.sha256:
            self.report.add(ref.key, f"has hash {found[:16]}…, {label} says {ref.sha256[:16]}…")

    def _check_part(self, label: str, part: Part) -> None:
        """Shards and index groups, which only the tables name."""
        if not self._is_new(part.samples.key + part.files.key):
            return
        try:
            keys = sorted(key for key in self._contents.part_keys(part) if self._is_new(key))
            sizes = self._sizes(dict.fromkeys(keys))
            for key in keys:
                self.report.objects += 1
                if key not in sizes:
                    self.report.add(key, f"is gone; {label} needs it")
            for where, what, bytes_read in check_part(
                self._store, self._contents, part, sizes, deep=self._deep
            ):
                self.report.bytes_read += bytes_read
                if what:
                    self.report.add(where, f"{what}; {label} needs it")
        except (NotFoundError, CorruptDataError) as error:
            self.report.add(part.files.key, f"{error}; {label} needs it")

    def _sizes(self, keys: dict[str, ObjectRef] | dict[str, None]) -> dict[str, int]:
        """Sizes of those keys that are there, by listing the sessions that wrote them."""
        found: dict[str, int] = {}
        for folder, group in groupby(sorted(keys), key=lambda key: key.rpartition("/")[0]):
            wanted = set(group)
            for info in self._listed(f"{folder}/"):
                if info[0] in wanted:
                    found[info[0]] = info[1]
        return found

    def _listed(self, prefix: str) -> Iterator[tuple[str, int]]:
        for info in self._store.list(prefix, purpose=Purpose.LISTING):
            yield info.key, info.size_bytes

    def _is_new(self, key: str) -> bool:
        """Whether this object has not been looked at; remembered by hash, so it stays small."""
        mark = xxhash.xxh3_64_intdigest(key.encode())
        if mark in self._seen:
            return False
        self._seen.add(mark)
        return True
