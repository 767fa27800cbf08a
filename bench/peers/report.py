"""The results as tables and a plot: on the terminal, and in docs/benchmarks.md."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
_OURS, _OTHER, _INK = "#c2410c", "#64748b", "#1f2937"
_BAR, _LABEL, _PANEL = 16, 210, 250
FEW_CLIPS = 8
DISTINCT = 0.9
"""Share of a window's clips that must be different: random ones hardly ever meet."""
UNSTEADY = 2.0
"""Between the halves of a window; clips differ in how many frames they need."""
IMPOSSIBLE = 1.3
"""Of the local limit, which is itself measured on clips that differ."""


def title(run: dict[str, Any]) -> str:
    size = "full size" if run["size"] == "full" else f"{run['size']} pixels"
    return f"keyframe every {run['gop']} frames, {run['rtt_ms']:g} ms round trip, {size}"


def table(run: dict[str, Any]) -> str:
    """Markdown."""
    lines = [
        f"\n| {title(run)} | clips/s | to the best peer | clips a CPU s | frames a clip"
        " | first clip, s | GETs a clip | MB a clip |",
        "|---|---|---|---|---|---|---|---|",
    ]
    limit = max((row["clips_per_cpu_s"] for row in run["rows"] if is_limit(row)), default=None)
    for row in sorted(run["rows"], key=lambda row: (is_limit(row), -row["clips_per_s"])):
        low, high = min(row["clips_per_s_by_round"]), max(row["clips_per_s_by_round"])
        lines.append(
            f"| {row['name']} ({', '.join(notes(row, limit))}) | {row['clips_per_s']:.2f}"
            f" ({low:.2f} to {high:.2f}) | {row['ratio_to_best_peer']:.2f}"
            f" | {row['clips_per_cpu_s']:.2f} | {row['frames_per_clip']:.0f}"
            f" | {row['first_clip_s']} | {row['data_requests_per_clip']:.2f}"
            f" | {row['MB_per_clip']:.2f} |"
        )
    lines += [f"| {name} | {reason} | | | | | | |" for name, reason in run["missing"].items()]
    return "\n".join(lines)


def is_limit(row: dict[str, Any]) -> bool:
    return bool(row["reads"] == "local")


def notes(row: dict[str, Any], limit: float | None = None) -> list[str]:
    """How a peer was set up, and what is wrong with its figures.

    ``limit`` is clips a CPU second from local files.
    """
    found = [row["note"], *doubts(row, limit)]
    if "no" in row["exact"]:
        found.append("**frames differ**")
    if row["failed"]:
        turns = len(row["failed"]) + len(row["clips_per_s_by_round"])
        found.append(f"**{len(row['failed'])} of {turns} turns failed**: {row['failed'][-1]}")
    if row["proxy_cores"] > 0.8:
        found.append("**the proxy's limit**")
    return found


def doubts(row: dict[str, Any], limit: float | None) -> list[str]:
    """Why a rate may not be one of this task in its steady state."""
    found = []
    left = row["stock_clips"] - min(row["passed_clips_by_round"])
    if left > 0:
        found.append(f"**up to {left} of its clips were made before counting began**")
    if min(row["clips_by_round"]) < FEW_CLIPS:
        found.append(f"**only {min(row['clips_by_round'])} clips in a window**")
    if row["distinct_clips"] < DISTINCT * row["clips"]:
        found.append(f"**{row['distinct_clips']} different of {row['clips']} clips**")
    for first, second in row["clips_per_s_by_half"]:
        if max(first, second) > UNSTEADY * min(first, second):
            found.append(f"**unsteady: {first:.2f}, then {second:.2f} clips/s**")
            break
    if limit is not None and not is_limit(row) and row["clips_per_cpu_s"] > IMPOSSIBLE * limit:
        found.append("**more clips a CPU second than any decoding of local files**")
    return found


def plot(runs: list[dict[str, Any]]) -> str:
    """SVG: a panel a run, a bar a peer, one scale."""
    names = list(dict.fromkeys(row["name"] for run in runs for row in run["rows"]))
    most = max(row["clips_per_s"] for run in runs for row in run["rows"])
    height = 40 + _BAR * len(names) + 14
    columns = 3
    rows = -(-len(runs) // columns)
    width = _LABEL + columns * _PANEL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {rows * height}" '
        f'font-family="sans-serif" font-size="11" fill="{_INK}">',
        f'<rect width="{width}" height="{rows * height}" fill="white"/>',
    ]
    for number, run in enumerate(runs):
        left, top = _LABEL + number % columns * _PANEL, number // columns * height
        rates = {row["name"]: row["clips_per_s"] for row in run["rows"]}
        size = "full size" if run["size"] == "full" else f"{run['size']} px"
        parts.append(
            f'<text x="{left}" y="{top + 20}" font-weight="bold">'
            f"{run['rtt_ms']:g} ms, keyframe every {run['gop']}, {size}</text>"
        )
        for place, name in enumerate(names):
            y = top + 32 + place * _BAR
            if number % columns == 0:
                parts.append(
                    f'<text x="{_LABEL - 8}" y="{y + 11}" text-anchor="end">{escape(name)}</text>'
                )
            rate = rates.get(name)
            long = (rate or 0.0) / most * (_PANEL - 60)
            colour = _OURS if name == "dstream" else _OTHER
            parts += [
                f'<rect x="{left}" y="{y}" width="{long:.1f}" height="{_BAR - 4}"'
                f' fill="{colour}"/>',
                f'<text x="{left + long + 4:.1f}" y="{y + 11}">'
                f"{'none' if rate is None else f'{rate:.2f}'}</text>",
            ]
    return "\n".join([*parts, "</svg>\n"])


def write(results: list[dict[str, Any]]) -> None:
    """Replace what stands between the marks in docs/benchmarks.md, and the plot beside it."""
    runs = [run for result in results for run in result["runs"]]
    commands = "\n".join(f"python -m peers {result['command']}" for result in results)
    versions = ", ".join(f"{name} {version}" for name, version in results[0]["versions"].items())
    page = DOCS / "benchmarks.md"
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    text = "\n".join(
        [
            "",
            "![Clips a second by loader, round trip and keyframe distance](peers.svg)",
            "",
            f"```sh\ncd bench\n{commands}\n```",
            "",
            f"Versions: {versions}.",
            *(table(run) for run in runs),
            "",
            "",
        ]
    )
    page.write_text(before + BEGIN + "\n" + text.lstrip("\n") + END + after)
    (DOCS / "peers.svg").write_text(plot(runs))
