from __future__ import annotations

import json
from typing import Any

import pytest

from bench_documents import made_document
from dstream.diagnose.bench.document import SCHEMA, BenchDocument
from dstream.errors import InvalidInputError


def test_a_document_comes_back_as_it_was() -> None:
    document = made_document()
    assert BenchDocument.parse(json.dumps(document.as_json())) == document
    assert BenchDocument.parse(document.as_json()) == document


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("schema",), "dstream.bench/2", SCHEMA),
        (("schema",), None, "run the bench again"),
        (("whole", "wall_s"), "ten", "whole.wall_s is 'ten', expected float"),
        (("whole", "clips"), 1.5, "whole.clips is 1.5, expected int"),
        (("stages", 1, "name"), "fry", "stages[1].name is 'fry', expected Stage"),
        (("stages",), {}, "stages is {}, expected tuple"),
        (("latencies", "decode", "counts"), [True], "latencies.decode.counts[0] is True"),
        (("verdict", "colour"), "red", "verdict has other fields"),
        (("cost",), 3, "cost is 3, expected an object"),
    ],
)
def test_another_document_is_refused_with_the_place(
    path: tuple[Any, ...], value: object, told: str
) -> None:
    document = json.loads(json.dumps(made_document().as_json()))
    place = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(InvalidInputError) as caught:
        BenchDocument.parse(document)
    assert told in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "3", '{"report": {}}', "{"])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="bench document"):
        BenchDocument.parse(text)
