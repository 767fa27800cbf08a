"""What ``show`` tells of a generation."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from dstream.catalog import Catalog, Generation
from dstream.errors import CorruptDataError
from dstream.format.chosen_rows import StoredTable, describe_samples
from dstream.format.manifest import Manifest, TableRef
from dstream.format.tables import read_table
from dstream.measure import Purpose
from dstream.media.row_form import ARRAY_CODEC
from dstream.units import format_bytes
from dstream_cli.lengths import length
from dstream_cli.plain import counted, timestamp
from dstream_cli.render import Facts, Part, Table

Document = dict[str, Any]

_STREAM_COLUMNS = (
    "container", "codec", "width", "height", "rotation_deg", "pix_fmt", "vfr", "duration_s",
    "access", "keyframes", "longest_gop_bytes", "index_size_bytes", "full_pass",
)  # fmt: skip
_SHOWN_KINDS = 12


def generation_document(catalog: Catalog, generation: Generation) -> Document:
    """Everything that ``show NAME --json`` prints. Reads all tables but that of files."""
    root = catalog.head()
    aliases = root.aliases_of(generation.name)
    document: Document = {
        "repository": catalog.store.url,
        "name": generation.name,
        "version": generation.version,
        "kind": generation.kind,
        "aliases": sorted(a for a, version in aliases.items() if version == generation.version),
        "generations": [entry.version for entry in root.generations(generation.name)],
        "parent": generation.parent,
        "seq": generation.seq,
        "created_s": generation.created_s,
        "created": timestamp(generation.created_s),
        "message": generation.message,
        "attrs": generation.attrs,
    }
    if generation.kind == "dataset":
        document |= _dataset(catalog, catalog.dataset(generation))
    elif generation.kind == "checkpoint":
        from dstream_cli.checkpoints import checkpoint_facts

        document |= checkpoint_facts(catalog, generation)
    return document


def _dataset(catalog: Catalog, manifest: Manifest) -> Document:
    streams: Counter[tuple[str, ...]] = Counter()
    length_s: defaultdict[tuple[str, ...], float] = defaultdict(float)
    index_bytes = full_passes = 0
    quarantine: list[Document] = []
    splits: Counter[str] = Counter()
    labels: dict[str, str] = {}
    for part in manifest.parts:
        samples = StoredTable(_fetched(catalog, part.samples), part.samples.rows, part.samples.key)
        part_splits, part_labels = describe_samples(samples)
        splits.update(part_splits)
        labels |= part_labels
        table = _read(catalog, part.streams, _STREAM_COLUMNS)
        rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
        for row in rows:
            kind = _kind(row)
            streams[kind] += 1
            length_s[kind] += float(row["duration_s"])
        index_bytes += int(table["index_size_bytes"].sum())
        full_passes += int(table["full_pass"].sum())
        if part.quarantine is not None:
            quarantine += _quarantined(catalog, part.quarantine)
    kinds = [
        dict(zip(_KIND, kind, strict=True)) | {"streams": n, "duration_s": length_s[kind]}
        for kind, n in streams.most_common()
    ]
    return {
        "totals": manifest.totals,
        "recipe": {"name": manifest.recipe.name, "params": dict(manifest.recipe.params)},
        "sources": list(manifest.sources),
        "tool": manifest.tool,
        "parts": [
            {
                "layout": part.layout,
                "source": manifest.sources[part.source],
                "files": part.files.rows,
                "streams": part.streams.rows,
                "samples": part.samples.rows,
                "shards": part.shards.count,
                "shard_bytes": part.shards.size_bytes,
            }
            for part in manifest.parts
        ],
        "splits": dict(sorted(splits.items())),
        "labels": dict(sorted(labels.items())),
        "kinds": kinds,
        "index_bytes": index_bytes,
        "full_passes": full_passes,
        "quarantine": quarantine,
    }


_KIND = ("container", "codec", "size", "pix_fmt", "frame_rate", "access")


def _kind(row: Document) -> tuple[str, ...]:
    turned = row["rotation_deg"] in (90, 270)
    width, height = (row["height"], row["width"]) if turned else (row["width"], row["height"])
    rate = "unknown" if row["vfr"] is None else "variable" if row["vfr"] else "constant"
    return (
        str(row["container"]),
        str(row["codec"]),
        f"{width}x{height}",
        str(row["pix_fmt"]),
        rate,
        str(row["access"]),
    )


def _quarantined(catalog: Catalog, ref: TableRef) -> list[Document]:
    table = _read(catalog, ref, ("name", "reason", "detail"))
    return [
        {"name": str(name), "reason": str(reason), "detail": str(detail)}
        for name, reason, detail in zip(*table.values(), strict=True)
    ]


def _fetched(catalog: Catalog, ref: TableRef) -> bytes:
    data = catalog.store.get(ref.key, purpose=Purpose.TABLE).data
    if hashlib.sha256(data).hexdigest() != ref.sha256:
        raise CorruptDataError(f"{ref.key}: its bytes are not those that were published")
    return data


def _read(catalog: Catalog, ref: TableRef, columns: Sequence[str]) -> Document:
    return dict(read_table(_fetched(catalog, ref), columns, rows=ref.rows))


def generation_parts(document: Document) -> list[Part]:
    """The same for people."""
    aliases = ", ".join(document["aliases"])
    title = f"{document['name']}@v{document['version']}" + (f" ({aliases})" if aliases else "")
    facts: list[tuple[str, object]] = [
        ("created", f"{document['created']}, log number {document['seq']}"),
        ("generations", _versions(document["generations"])),
    ]
    if document["message"]:
        facts.append(("message", document["message"]))
    if document["kind"] == "checkpoint":
        from dstream_cli.checkpoints import checkpoint_parts

        return checkpoint_parts(document, title, facts)
    if "totals" not in document:
        return [Facts([("kind", document["kind"]), *facts], title=title)]
    totals, recipe = document["totals"], document["recipe"]
    layouts = Counter(part["layout"].replace("_", " ") for part in document["parts"])
    params = "".join(f" {name}={value}" for name, value in recipe["params"].items())
    facts += [
        ("samples", f"{totals.samples:,} from {counted(totals.files, 'file')}"),
        ("splits", ", ".join(f"{split} {n:,}" for split, n in document["splits"].items())),
        *((("labels", ", ".join(document["labels"])),) if document["labels"] else ()),
        ("length", length(totals.duration_s, sum(map(_rows_s, document["kinds"])))),
        ("bytes", f"{format_bytes(totals.bytes)}; index {format_bytes(document['index_bytes'])}"),
        ("layout", ", ".join(f"{layout} ({counted(n, 'part')})" for layout, n in layouts.items())),
        ("recipe", recipe["name"] + params),
        *(("source", source) for source in document["sources"]),
    ]
    if totals.quarantined:
        facts.append(("quarantined", counted(totals.quarantined, "file")))
    parts: list[Part] = [Facts(facts, title=title)]
    kinds = document["kinds"]
    if kinds:
        rows = [_kind_row(kind) for kind in kinds[:_SHOWN_KINDS]]
        titles = ("container", "codec", "size", "pixels", "rate", ">streams", ">length")
        parts.append(Table(titles, rows))
    if len(kinds) > _SHOWN_KINDS:
        parts.append(f"… and {len(kinds) - _SHOWN_KINDS} more kinds; --json has all")
    if document["quarantine"]:
        parts.append(quarantine_table(document["quarantine"]))
    return parts


def _kind_row(kind: Document) -> tuple[object, ...]:
    names = ("container", "codec", "size", "pix_fmt", "frame_rate", "streams")
    return (*(kind[name] for name in names), length(kind["duration_s"], _rows_s(kind)))


def _rows_s(kind: Document) -> float:
    """Of its length, what is rows of arrays."""
    return float(kind["duration_s"]) if kind["codec"] == ARRAY_CODEC else 0.0


def quarantine_table(rows: Sequence[Document]) -> Table:
    """How many files were quarantined for each reason, with one example."""
    count = Counter(row["reason"] for row in rows)
    example = {row["reason"]: row for row in reversed(rows)}
    return Table(
        ("reason", ">files", "for example"),
        [(reason, n, _told(example[reason])) for reason, n in count.most_common()],
        title="Quarantined",
    )


def _told(row: Document) -> str:
    name, detail = str(row["name"]), str(row["detail"])
    return detail if name in detail else f"{name}: {detail}"


def _versions(versions: Sequence[int]) -> str:
    shown = ", ".join(f"v{version}" for version in versions[-8:])
    return shown if len(versions) <= 8 else f"{len(versions)}, the last {shown}"
