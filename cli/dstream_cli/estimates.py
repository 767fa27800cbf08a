"""What ``ingest --dry-run`` tells of an estimate."""

from __future__ import annotations

from dstream.ingest import Estimate, LayoutEstimate
from dstream.units import format_bytes, format_duration
from dstream_cli.lengths import RECIPE_OF_ROWS, length
from dstream_cli.plain import counted
from dstream_cli.render import Facts, Part, Table


def estimate_parts(found: Estimate, unit: str, recipe: str) -> list[Part]:
    """The estimate for people: what was found, then both layouts side by side.

    Args:
        found: the estimate.
        unit: what a file of the recipe is called, such as ``video``.
        recipe: its name.
    """
    rows_s = found.duration_s if recipe == RECIPE_OF_ROWS else 0.0
    facts: list[tuple[str, object]] = [
        (
            "found",
            f"{counted(found.videos, unit)}, {counted(found.side_files, 'side file')}, "
            f"{format_bytes(found.bytes)}",
        ),
        (
            "sampled",
            f"{counted(found.sampled_videos, unit)} by reading "
            f"{format_bytes(found.sampled_bytes)} at {format_bytes(found.bytes_per_s)}/s",
        ),
        (
            "expected",
            f"{counted(found.usable_videos, f'usable {unit}')}, "
            f"{length(found.duration_s, rows_s)} in all",
        ),
    ]
    if found.full_pass_videos:
        facts.append(
            (
                "full passes",
                f"{counted(found.full_pass_videos, unit)} to be read whole to be indexed",
            )
        )
    if found.quarantined:
        reasons = ", ".join(f"{n} {reason}" for reason, n in found.quarantined.items())
        facts.append(("quarantined", f"of the sample: {reasons}"))
    titles = ("", ">packed", ">in place")
    both = [_column(found.packed), _column(found.in_place)]
    rows = [(name, *(column[name] for column in both)) for name in both[0]]
    prices = found.prices
    return [
        Facts(facts, title=found.source),
        Table(titles, rows),
        f"At ${prices.put_per_million:g} a million writes and listings, "
        f"${prices.get_per_million:g} a million reads, ${prices.storage_per_gb_month:g} a GB and "
        f"month, ${prices.egress_per_gb:g} a GB of egress. Nothing was written.",
    ]


def _column(layout: LayoutEstimate) -> dict[str, str]:
    return {
        "bytes read": format_bytes(layout.bytes_read),
        "bytes written": format_bytes(layout.bytes_written),
        "objects written": f"{layout.objects_written:,}",
        "reads": f"{layout.get_requests:,}",
        "writes": f"{layout.put_requests:,}",
        "listings": f"{layout.list_requests:,}",
        "time from here": format_duration(layout.hours * 3600),
        "dollars once": f"{layout.dollars:,.4f}",
        "dollars a month": f"{layout.dollars_per_month:,.4f}",
    }
