"""Small repositories with real manifests and bytes, for tests of the lifecycle."""

from __future__ import annotations

from collections.abc import Mapping

from catalog_made import create_catalog
from dstream.catalog import Catalog, GcSettings, Generation, PublishOptions, Session
from dstream.format.checkpoint import CheckpointFile, CheckpointManifest, encode_checkpoint
from dstream.format.refs import ObjectRef
from dstream.format.root import sha256_hex
from dstream.store.base import Store

AT_ONCE = GcSettings(grace_s=0, session_grace_s=0)
DAY_S = 86400.0


def upload(store: Store, session: Session, files: Mapping[str, str | ObjectRef]) -> bytes:
    """Store texts as objects of a session (references are shared), and make their manifest."""
    entries = []
    for path, content in files.items():
        ref = content
        if isinstance(ref, str):
            data = ref.encode()
            sha256 = sha256_hex(data)
            key = f"{session.data_prefix}{path}-{sha256[:16]}"
            store.put(key, data)
            ref = ObjectRef(key, len(data), sha256)
        entries.append(CheckpointFile(path, ref))
    return encode_checkpoint(CheckpointManifest(tuple(entries), "test"))


def publish_files(
    catalog: Catalog,
    name: str,
    files: Mapping[str, str | ObjectRef],
    *,
    parent: int | None = None,
    key: str | None = None,
    promote: str | None = None,
    session: Session | None = None,
) -> Generation:
    """Publish texts as a checkpoint."""
    session = session or catalog.begin_session()
    manifest = upload(catalog.store, session, files)
    content = sha256_hex(repr(sorted(files.items())).encode())
    options = PublishOptions(
        parent=parent, idempotency_key=key, content_sha256=content, promote=promote
    )
    return catalog.publish(session, name, "checkpoint", manifest, options)


def file_refs(catalog: Catalog, generation: Generation) -> dict[str, ObjectRef]:
    """The objects of a checkpoint by path."""
    from dstream.format.checkpoint import decode_checkpoint

    manifest = decode_checkpoint(catalog.manifest_bytes(generation))
    return {file.path: file.object for file in manifest.files}


def read_files(catalog: Catalog, generation: Generation) -> dict[str, str]:
    """The texts of a checkpoint, each checked against its hash."""
    found = {}
    for path, ref in file_refs(catalog, generation).items():
        data = catalog.store.get(ref.key).data
        if sha256_hex(data) != ref.sha256:
            raise AssertionError(f"{ref.key} is not what was published")
        found[path] = data.decode()
    return found


def data_keys(store: Store) -> set[str]:
    """Keys of all data objects that are stored."""
    return {info.key for info in store.list("data/")}


def four_runs(store: Store) -> Catalog:
    """A new catalog with ``run`` v1 to v4, each of one file with a text of its own."""
    catalog = create_catalog(store, "creator")
    for number in range(1, 5):
        publish_files(catalog, "run", {"weights": f"text {number}"})
    return catalog


def labels(catalog: Catalog) -> list[int]:
    """The versions of ``run`` that the catalog lists."""
    return [generation.version for generation in catalog.generations("run")]
