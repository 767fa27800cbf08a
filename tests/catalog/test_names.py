from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.catalog.names import Reference, check_alias, check_name, check_session_key
from dstream.errors import InvalidInputError


@pytest.mark.parametrize("name", ["a", "team/run-7", "A.b_c-d", "_x", "0", "a" * 200, "a/b/c/d"])
def test_usable_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "/a", "a/", "a//b", "a@b", "..", "a..b", "a/../b", ".hidden", "a/.b", "-x"),
        *("a b", "a\nb", "a\0b", "é", "a" * 201, "a\\b", "a:b", "\ud800"),
    ],
)
def test_unusable_names(name: str) -> None:
    with pytest.raises(InvalidInputError, match="unusable name"):
        check_name(name)


@pytest.mark.parametrize("alias", ["latest", "prod", "v", "v3", "V03", "newest", "7", "", "a b"])
def test_aliases(alias: str) -> None:
    if alias in ("latest", "prod"):
        assert check_alias(alias) == alias
        return
    with pytest.raises(InvalidInputError, match="unusable alias"):
        check_alias(alias)


@pytest.mark.parametrize("key", ["", "a/b", "..", ".x", "x" * 101, "a b", "a@b"])
def test_unusable_session_keys(key: str) -> None:
    with pytest.raises(InvalidInputError, match="session key"):
        check_session_key(key)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clips", Reference("clips", None, "latest")),
        ("team/clips@latest", Reference("team/clips", None, "latest")),
        ("clips@v3", Reference("clips", 3, None)),
        ("clips@prod", Reference("clips", None, "prod")),
        ("clips@newest", Reference("clips", None, None)),
        ("clips@v3x", Reference("clips", None, "v3x")),
    ],
)
def test_references(text: str, expected: Reference) -> None:
    assert Reference.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "@", "@v1", "clips@", "clips@v0", "clips@v03", "clips@V3", "clips@v", "clips@12",
             "clips@a@b", "a b@v1", "clips@v" + "9" * 30, "clips@12#abc"],
)  # fmt: skip
def test_no_references(text: str) -> None:
    with pytest.raises(InvalidInputError):
        Reference.parse(text)


@given(st.text(max_size=30))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    try:
        parsed = Reference.parse(text)
    except InvalidInputError:
        return
    assert Reference.parse(str(parsed)) == parsed
