from __future__ import annotations

from dataclasses import replace

import pytest

from catalog_made import empty_root, ref
from dstream.catalog.transitions import (
    ApplyContext,
    MoveAlias,
    Noop,
    Nothing,
    Op,
    Publish,
    apply,
    find_published,
)
from dstream.errors import ConflictError, InvalidInputError, NotFoundError
from dstream.format.root import Root

CONTEXT = ApplyContext(seq=1, time_hint_s=5.0)


def publish(name: str = "clips", **fields: object) -> Publish:
    values: dict[str, object] = {
        "name": name,
        "kind": "dataset",
        "manifest": ref(),
        "content_sha256": "c",
        "session": "s",
        "base_seq": 0,
    }
    values.update(fields)
    return Publish(**values)  # type: ignore[arg-type]


def after(*ops: Op, root: Root | None = None) -> Root:
    root = root or empty_root()
    for op in ops:
        root = apply(root, op, CONTEXT).root
    return root


def test_publish_gives_numbers_and_moves_latest() -> None:
    root = after(publish(), publish(), publish("other"))
    assert [entry.label for entry in root.entries] == ["clips@v1", "clips@v2", "other@v1"]
    assert root.aliases == {"clips": {"latest": 2}, "other": {"latest": 1}}
    assert root.entries[0].seq == 1
    assert root.entries[0].created_s == 5.0
    assert [op["op"] for op in root.ops] == ["publish"] * 3


def test_numbers_are_never_given_twice() -> None:
    root = after(publish(), publish())
    retired = replace(root, entries=(), aliases={})
    assert after(publish(), root=retired).entries[0].version == 3


def test_latest_stays_when_told_to() -> None:
    root = after(publish(), publish(move_latest=False))
    assert root.aliases["clips"]["latest"] == 1
    assert after(publish(move_latest=False)).aliases == {}


@pytest.mark.parametrize(
    ("steps", "latest"),
    [
        ((10, 20), 2),
        ((20, 10), 1),
        ((10, 10), 2),
        ((20, 10, 30), 3),
        ((20, None), 2),
        ((None, 0), 2),
    ],
)
def test_latest_never_goes_back_in_step(steps: tuple[int | None, ...], latest: int) -> None:
    root = after(*(publish(kind="checkpoint", step=step) for step in steps))
    assert root.aliases["clips"]["latest"] == latest


def test_a_name_keeps_its_kind() -> None:
    with pytest.raises(ConflictError, match="is a dataset"):
        after(publish(), publish(kind="checkpoint"))


@pytest.mark.parametrize(
    "fields",
    [{"name": "a@b"}, {"kind": "Data Set"}, {"step": -1}, {"message": "x" * 10_001},
     {"idempotency_key": ""}, {"idempotency_key": "x" * 201}],
)  # fmt: skip
def test_unusable_fields(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        after(publish(**fields))  # type: ignore[arg-type]


def test_same_key_and_content_is_the_same_generation() -> None:
    root = after(publish(idempotency_key="k"), publish())
    again = apply(root, publish(idempotency_key="k", manifest=ref("other")), CONTEXT)
    assert again.root is root
    assert again.generation == root.entries[0]


def test_same_key_and_other_content_conflicts() -> None:
    root = after(publish(idempotency_key="k"))
    with pytest.raises(ConflictError, match="other content"):
        after(publish(idempotency_key="k", content_sha256="d"), root=root)


def test_key_of_a_retired_generation_conflicts() -> None:
    root = replace(after(publish(idempotency_key="k")), entries=())
    with pytest.raises(ConflictError, match="retired"):
        find_published(root, "clips", "k", "c")


def test_keys_are_per_name() -> None:
    root = after(publish(idempotency_key="k"), publish("other", idempotency_key="k"))
    assert len(root.entries) == 2


def test_fenced_session_cannot_publish() -> None:
    root = empty_root(upload_floor=7)
    with pytest.raises(ConflictError, match="fenced") as caught:
        after(publish(base_seq=6), root=root)
    assert caught.value.facts["reason"] == "fenced"
    assert after(publish(base_seq=7), root=root).entries


def test_what_was_committed_before_the_fence_is_still_answered() -> None:
    root = replace(after(publish(idempotency_key="k")), upload_floor=9)
    assert apply(root, publish(idempotency_key="k"), CONTEXT).generation == root.entries[0]


def test_append_to_a_retired_parent_conflicts() -> None:
    root = after(publish(), publish())
    assert after(publish(parent=2), root=root).entries[-1].parent == 2
    with pytest.raises(ConflictError, match="retired"):
        after(publish(parent=2), root=replace(root, entries=root.entries[:1]))


@pytest.mark.parametrize(
    ("expect", "moves"), [(None, True), (2, True), (1, False), (0, False), (9, False)]
)
def test_alias_moves_when_the_expectation_holds(expect: int | None, moves: bool) -> None:
    root = after(publish(), publish())
    op = MoveAlias("clips", "latest", 1, expect)
    if moves:
        assert after(op, root=root).aliases["clips"]["latest"] == 1
        return
    with pytest.raises(ConflictError, match="somebody moved it"):
        after(op, root=root)


def test_alias_that_must_not_exist_yet() -> None:
    root = after(publish())
    made = after(MoveAlias("clips", "prod", 1, expect=0), root=root)
    assert made.aliases["clips"] == {"latest": 1, "prod": 1}
    with pytest.raises(ConflictError):
        after(MoveAlias("clips", "prod", 1, expect=0), root=made)


def test_alias_already_there_commits_nothing() -> None:
    root = after(publish())
    assert apply(root, MoveAlias("clips", "latest", 1), CONTEXT).root is root


@pytest.mark.parametrize("target", [("clips", 2), ("other", 1)])
def test_alias_to_nothing(target: tuple[str, int]) -> None:
    with pytest.raises(NotFoundError):
        after(MoveAlias(target[0], "prod", target[1]), root=after(publish()))


@pytest.mark.parametrize("alias", ["newest", "v1", "a/b"])
def test_alias_that_cannot_be(alias: str) -> None:
    with pytest.raises(InvalidInputError):
        after(MoveAlias("clips", alias, 1), root=after(publish()))


def test_condemned_generation_is_never_named_again() -> None:
    root = after(publish(), publish())
    doomed = replace(root.entries[0], retired_seq=1, condemned_seq=1)
    root = replace(root, entries=(doomed, root.entries[1]))
    with pytest.raises(ConflictError, match="being deleted"):
        after(MoveAlias("clips", "latest", 1), root=root)
    assert after(MoveAlias("clips", "prod", 2), root=root).aliases["clips"]["prod"] == 2


def test_noop_takes_a_slot_and_nothing_does_not() -> None:
    root = after(publish())
    noop = apply(root, Noop("test"), CONTEXT).root
    assert noop is not root
    assert replace(noop, ops=root.ops) == root
    assert apply(root, Nothing(root.entries[0]), CONTEXT).root is root


def test_apply_never_changes_its_input() -> None:
    root = after(publish(idempotency_key="k"))
    before = (dict(root.artifacts), dict(root.aliases["clips"]), root.entries, root.ops)
    after(publish(idempotency_key="l"), MoveAlias("clips", "prod", 1), root=root)
    assert before == (dict(root.artifacts), dict(root.aliases["clips"]), root.entries, root.ops)
