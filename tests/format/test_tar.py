from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.errors import InvalidInputError, StorageError
from dstream.format import tar

PART = st.text(
    st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=150
).filter(lambda part: part not in (".", ".."))
NAMES = st.lists(PART, min_size=1, max_size=4).map("/".join)


def write(members: dict[str, bytes]) -> tuple[bytes, list[int]]:
    target = io.BytesIO()
    writer = tar.TarWriter(target)
    offsets = [
        writer.add(tar.Member(name, len(data)), io.BytesIO(data)) for name, data in members.items()
    ]
    size = writer.finish()
    assert size == len(target.getvalue())
    return target.getvalue(), offsets


@given(st.dictionaries(NAMES, st.binary(max_size=1500), max_size=5))
def test_python_reads_what_was_written_and_plans_agree(members: dict[str, bytes]) -> None:
    data, offsets = write(members)
    planned, size = tar.plan_offsets([tar.Member(n, len(b)) for n, b in members.items()])
    assert (planned, size) == (offsets, len(data))
    for offset, payload in zip(offsets, members.values(), strict=True):
        assert offset % tar.BLOCK_BYTES == 0
        assert data[offset : offset + len(payload)] == payload
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {info.name: (info, archive.extractfile(info)) for info in archive}
        assert list(found) == [name.rstrip("/") for name in members]
        for name, payload in members.items():
            info, reader = found[name]
            assert reader is not None
            assert reader.read() == payload
            assert (info.mtime, info.uid, info.gid, info.uname) == (0, 0, 0, "")
    assert write(members)[0] == data


@given(
    st.dictionaries(NAMES, st.binary(max_size=1500), max_size=5),
    st.sampled_from([512, 1024, 4096, 1 << 16]),
)
def test_payloads_are_aligned_and_python_reads_them(members: dict[str, bytes], align: int) -> None:
    target = io.BytesIO()
    writer = tar.TarWriter(target, align)
    for name, payload in members.items():
        offset = writer.add(tar.Member(name, len(payload)), io.BytesIO(payload))
        assert offset % align == 0
    writer.finish()
    with tarfile.open(fileobj=io.BytesIO(target.getvalue())) as archive:
        found = {info.name: archive.extractfile(info) for info in archive}
        assert {name: file.read() for name, file in found.items() if file} == {
            name.rstrip("/"): payload for name, payload in members.items()
        }


def test_the_systems_tar_reads_aligned_members(tmp_path: Path) -> None:
    members = {"a.npy": b"1", "é" * 90: b"22", "d/" * 60 + "b": b"333"}
    with (tmp_path / "a.tar").open("wb") as target:
        writer = tar.TarWriter(target, 4096)
        for name, payload in members.items():
            writer.add(tar.Member(name, len(payload)), io.BytesIO(payload))
        writer.finish()
    subprocess.run(["tar", "-xf", "a.tar"], cwd=tmp_path, check=True)
    assert {name: (tmp_path / name).read_bytes() for name in members} == members


def test_files_beyond_eight_gigabytes_fit() -> None:
    header = tar.member_header(tar.Member("huge.mp4", 10 << 30))
    info = tarfile.TarInfo.frombuf(header[-512:], "utf-8", "strict")
    assert info.name == "huge.mp4"
    assert f"size={10 << 30}".encode() in header


@pytest.mark.parametrize(
    "name", ["", "/abs.mp4", "a/../b.mp4", "..", "a//b", "a/", "./a", "nul\0.mp4", "\udcff.mp4"]
)
def test_unsafe_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="unusable"):
        tar.member_header(tar.Member(name, 1))


@pytest.mark.parametrize("payload", [b"", b"ab", b"abcd"])
def test_a_payload_of_another_size_is_an_error(payload: bytes) -> None:
    with pytest.raises(StorageError, match="expected 3"):
        tar.TarWriter(io.BytesIO()).add(tar.Member("a.mp4", 3), io.BytesIO(payload))
