"""The clips that a verb's options ask for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dstream.errors import InvalidInputError
from dstream_cli.options import Common, by_name, is_path

if TYPE_CHECKING:
    from dstream.loader import Clips

Sampling = Literal["uniform", "grid", "keyframe"]


def open_clips(
    call: Common,
    target: str,
    cache: dict[str, Any],
    *,
    split: str | None,
    where: str | None,
    recipe: str,
    **clip: Any,
) -> Clips:
    """The clips of a dataset, or of raw videos, with the options of a verb."""
    import dstream

    options = call.store_options()
    if not is_path(target, call.repo):
        if recipe:
            clip["recipe"] = recipe
        repo = dstream.open(call.repo_url(target), options=options, **cache)
        call.context.call_on_close(repo.close)
        with by_name(target):
            return repo.clips(target, split=split, where=where, **clip)
    if split is not None or where is not None or recipe:
        raise InvalidInputError(
            "--split, --where and --recipe need a dataset: raw videos have none of them"
        )
    folder = target if "://" in target else Path(target).expanduser()
    return dstream.clips(folder, options=options, **cache, **clip)


def parse_size(text: str) -> int | tuple[int, int] | None:
    """``256`` is the shorter side, ``180x320`` (height, width), empty the video's own size.

    >>> parse_size("256"), parse_size("180x320"), parse_size("")
    (256, (180, 320), None)
    """
    if not text:
        return None
    numbers = text.lower().split("x")
    if len(numbers) > 2 or not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise InvalidInputError(f"--resize {text}: write 256 or HEIGHTxWIDTH such as 180x320")
    return int(numbers[0]) if len(numbers) == 1 else (int(numbers[0]), int(numbers[1]))


def parse_crop(text: str) -> tuple[int, int] | None:
    """``180x320`` is (height, width), empty none.

    >>> parse_crop("180x320"), parse_crop("")
    ((180, 320), None)
    """
    if not text:
        return None
    numbers = text.lower().split("x")
    if len(numbers) != 2 or not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise InvalidInputError(f"--crop {text}: write HEIGHTxWIDTH such as 180x320")
    return int(numbers[0]), int(numbers[1])
