from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from dstream.errors import InvalidInputError, NotFoundError
from dstream.recipe import (
    FileRecipe,
    installed_recipe,
    installed_recipes,
    load_recipe,
    recipe_params,
)
from dstream_recipes import gameplay, video

OWN = """
from dstream_recipes.video import VideoRecipe

RECIPE = VideoRecipe(name="mine")
"""


def test_installed_recipes_are_found_by_name() -> None:
    assert {"gameplay", "video"} <= set(installed_recipes())
    assert installed_recipe("video") is video.RECIPE
    configured = load_recipe("gameplay", {"align": "time"})
    assert recipe_params(configured)["align"] == "time"
    assert recipe_params(installed_recipe("gameplay")) == gameplay.RECIPE.params


def test_a_file_is_a_recipe_and_pickles_as_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    recipe = load_recipe(str(path), {"split": "val"})
    assert recipe.name == "mine"
    assert recipe_params(recipe) == {"split": "val"}
    again = pickle.loads(pickle.dumps(recipe))
    assert isinstance(again, FileRecipe)
    assert (again.name, again.params) == ("mine", {"split": "val"})


def test_a_name_from_a_manifest_never_runs_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("raise SystemExit('was run')")
    with pytest.raises(NotFoundError, match="no installed recipe"):
        installed_recipe(str(path))


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("1/0", "fails: ZeroDivisionError"),
        ("def f(:", "fails: SyntaxError"),
        ("x = 1", "defines no RECIPE"),
        ("RECIPE = 1", "lacks name, needs_packets, samples, side_data"),
    ],
)
def test_files_that_are_no_recipe_are_told(tmp_path: Path, source: str, fault: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(source)
    with pytest.raises(InvalidInputError, match=fault):
        load_recipe(str(path))


def test_missing_names_and_files_are_told(tmp_path: Path) -> None:
    named = r"called 'gampelay'; installed: arrays, gameplay, video"
    with pytest.raises(NotFoundError, match=named):
        load_recipe("gampelay")
    with pytest.raises(NotFoundError, match="no recipe file"):
        load_recipe(str(tmp_path / "gone.py"))
