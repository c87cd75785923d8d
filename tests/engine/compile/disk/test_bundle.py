"""A bundle holds the files of a folder, and nothing in it leads anywhere else."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from torch_xla._engine.compile.disk import bundle, cache_folder, executable_format, signing_key


def executable(name: str) -> bytes:
    header = executable_format.Header(name, {"jax": "1"}, 1.0, 3, "f", (), (), (), (), ())
    return executable_format.joined(header, b"abc", signing_key.signature)


def folder(place: Path, files: Mapping[str, bytes]) -> Path:
    place.mkdir(mode=0o700)
    for name, data in files.items():
        (place / name).write_bytes(data)
    return place


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    files = {"a.xla": executable("a"), "b.xla": executable("b"), "a.xla.numbers": b"[0, 2]"}
    others = {"notes.txt": b"x", ".c.xla": executable("c"), ".d.xla.part": b"half"}
    place = folder(tmp_path / "from", files | others)
    assert bundle.write(tmp_path / "all.tar", place) == 2
    assert bundle.read(tmp_path / "all.tar", tmp_path / "to") == (2, [])
    assert {path.name: path.read_bytes() for path in (tmp_path / "to").iterdir()} == files


def test_a_folder_that_is_not_there_makes_an_empty_bundle(tmp_path: Path) -> None:
    assert bundle.write(tmp_path / "none.tar", tmp_path / "nowhere") == 0
    assert bundle.read(tmp_path / "none.tar", tmp_path / "to") == (0, [])


def test_damaged_executables_are_named_and_the_others_are_taken(tmp_path: Path) -> None:
    files = {"a.xla": executable("a"), "b.xla": executable("b")[:-1], "c.xla": b""}
    bundle.write(tmp_path / "all.tar", folder(tmp_path / "from", files))
    assert bundle.read(tmp_path / "all.tar", tmp_path / "to") == (1, ["b.xla", "c.xla"])
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["a.xla"]


def test_paths_and_links_lead_nowhere_else(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        for name in ("../../out.xla", "/tmp/out/in.xla", "deep/er.xla"):
            member = tarfile.TarInfo(name)
            member.size = len(executable("x"))
            archive.addfile(member, io.BytesIO(executable("x")))
        for kind, name in ((tarfile.SYMTYPE, "link.xla"), (tarfile.LNKTYPE, "hard.xla"), (tarfile.DIRTYPE, "dir.xla")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(tmp_path / "secret")
            archive.addfile(member)
    assert bundle.read(tmp_path / "evil.tar", tmp_path / "to") == (3, [])
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["er.xla", "in.xla", "out.xla"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.tar", "to"]


def test_executables_are_signed_by_who_takes_them_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.write(tmp_path / "all.tar", folder(tmp_path / "from", {f"a{cache_folder.SUFFIX}": executable("a")}))
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_KEY", str(tmp_path / "another.key"))
    bundle.read(tmp_path / "all.tar", tmp_path / "to")
    (path,) = (tmp_path / "to").iterdir()
    executable_format.split(path.read_bytes(), lambda checksum, signed: signing_key.verify(path, checksum, signed))
