"""``dstream recipes``: what kinds of data there are recipes for, and their parameters."""

from __future__ import annotations

from typing import Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, common, epilog
from dstream_cli.render import Facts, Part, Table

NAME = "recipes"
SUMMARY = "List the kinds of data that ingest knows."
EPILOG = epilog(
    "dstream recipes",
    "dstream recipes gameplay",
    "dstream recipes ./my_recipe.py --json",
    codes=(0, 1, 2, 10),
)


def run(
    context: typer.Context,
    recipe: Annotated[
        str, typer.Argument(metavar="[RECIPE]", help="An installed name, or a Python file.")
    ] = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List the installed recipes, or show one recipe's parameters."""
    from dstream.recipe import installed_recipes, load_recipe, recipe_params

    out = common(context, quiet=quiet).out
    if not recipe:
        listed = [
            {"name": name, "object": where, "summary": _summary(where)}
            for name, where in installed_recipes().items()
        ]
        rows = [(item["name"], item["summary"]) for item in listed]
        out.result({"recipes": listed}, [Table(("recipe", "what a sample is"), rows)])
        return
    found = load_recipe(recipe)
    params = recipe_params(found)
    document = {"name": found.name, "needs_packets": found.needs_packets, "params": params}
    facts: list[Part] = [
        Facts(
            [
                ("recipe", found.name),
                ("full index", "needed" if found.needs_packets else "not needed"),
            ]
        )
    ]
    if params:
        facts.append(Table(("parameter", "value"), [(n, _shown(v)) for n, v in params.items()]))
    out.result(document, facts)


def _shown(value: object) -> str:
    return "(none)" if value == "" else str(value)


def _summary(where: str) -> str:
    """The first line of the docstring of a recipe's module, without its name."""
    from importlib import import_module

    try:
        text = import_module(where.partition(":")[0]).__doc__ or ""
    except ImportError as error:
        return f"cannot be imported: {error}"
    return text.partition("\n")[0].partition(": ")[2].rstrip(".")
