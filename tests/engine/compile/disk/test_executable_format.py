"""The format of an executable on disk: what was written is read, and nothing else is believed."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.compile.disk import executable_format
from torch_xla._engine.compile.disk.executable_format import Header, Refused, Unreadable, joined, signed_anew, split

HEADER = Header("p", {"jax": "1"}, 0.5, 3, "f", (((2, 3), "float32"),), (((), "bool"),), (((0, 1), ()),), (0,), (0, 1))


def sign(checksum: bytes) -> bytes:
    return b"signed " + checksum[:8]


integers = st.lists(st.integers(0, 9), max_size=3).map(tuple)
values = st.lists(st.tuples(integers, st.sampled_from(["float32", "bool"])), max_size=2).map(tuple)


texts = st.sampled_from(["", "p", "two\nlines", "größe", '"'])


@given(texts, st.dictionaries(texts, texts, max_size=2), values, integers, st.binary(max_size=300))
def test_what_was_written_is_read(
    name: str, environment: dict[str, str], taken: Any, donated: tuple[int, ...], body: bytes
) -> None:
    divided = (donated, ()), ()
    header = Header(name, environment, 1.0, len(body), name, taken, taken, divided, donated, donated)
    data = joined(header, body, sign)
    assert split(data) == (header, body)
    assert split(signed_anew(data, lambda _: b"another")) == (header, body)
    with pytest.raises(Unreadable, match="another length than the header says"):
        split(joined(replace(header, bytes=len(body) + 1), body, sign))


@given(st.data())
def test_damage_is_seen(data: st.DataObject) -> None:
    sound = joined(HEADER, b"abc", sign)
    place = data.draw(st.integers(0, len(sound) - 1))
    changed = bytearray(sound)
    changed[place] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(changed), sound[:place], sound + b"x"):
        signature = sound.split(b"\n")[2]
        if damaged.split(b"\n")[2:3] == [signature] or damaged.count(b"\n") < 4:
            with pytest.raises(Unreadable):
                split(damaged)
        else:  # in the signature: that is for `verify`

            def verify(checksum: bytes, signed: bytes) -> None:
                assert signed != sign(checksum)
                raise Refused

            with pytest.raises((Unreadable, Refused)):
                split(damaged, verify)


def test_the_signature_is_that_of_the_checksum() -> None:
    seen = []
    data = joined(HEADER, b"abc", sign)
    split(data, lambda checksum, signed: seen.append((checksum, signed)))
    ((checksum, signed),) = seen
    assert signed == sign(checksum) and data.startswith(executable_format.MAGIC + checksum + b"\n")


@pytest.mark.parametrize(
    "change",
    [
        *({field.name: None} for field in fields(Header)),
        *({name: [-1]} for name in ("weak", "donated")),
        {"inputs": [[[2], 3]]},
        {"inputs": [[2, "f"]]},
        {"outputs": [[[True], "float32"]]},
        {"divided": [0]},
        {"divided": [[0]]},
        {"weak": [0.0]},
        {"seconds": -1},
        {"seconds": 1e9},
        {"bytes": -1},
        {"bytes": 1 << 40},
        {"environment": {"a": 1}},
        {"more": 1},
    ],
    ids=str,
)
def test_a_header_that_says_something_else_is_not_believed(change: dict[str, Any]) -> None:
    with pytest.raises(Unreadable, match="header"):
        executable_format._header(json.dumps(asdict(HEADER) | change).encode())
    assert executable_format._header(json.dumps(asdict(HEADER)).encode()) == HEADER


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_header_is_not_believed(text: bytes) -> None:
    with pytest.raises(Unreadable, match="header"):
        executable_format._header(text)


def test_a_file_is_read_as_far_as_it_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "a.xla"
    data = joined(HEADER, b"abc", sign)
    path.write_bytes(data)
    assert executable_format.header_of(path) == HEADER
    assert executable_format.contents(path, len(data)) == data
    with pytest.raises(Unreadable, match=f"it has more than {len(data) - 1} bytes"):
        executable_format.contents(path, len(data) - 1)
    path.write_bytes(b"\x7fELF" + data)
    with pytest.raises(Unreadable, match="does not begin as such a file does"):
        executable_format.header_of(path)
    with pytest.raises(FileNotFoundError):
        executable_format.contents(tmp_path / "none")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for place in (tmp_path, pipe) * 20:  # threads of earlier tests may open and close some meanwhile
        with pytest.raises(Unreadable, match="no regular file"):
            executable_format.contents(place)
    assert not before or len(os.listdir("/proc/self/fd")) < before + 20


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="users are POSIX's")
def test_what_others_may_write_is_refused(tmp_path: Path) -> None:
    def of(mode: int, user: int) -> Callable[[], None]:
        status = os.stat_result((0o100000 | mode, 0, 0, 1, user, 0, 0, 0, 0, 0))
        return lambda: executable_format.refuse_others(tmp_path, status)

    me = os.geteuid()
    for mode in (0o600, 0o644, 0o755):
        of(mode, me)()
        of(mode, 0)()
    for mode in (0o620, 0o602, 0o666):
        with pytest.raises(Refused, match=r"other users may write to .* \(`chmod go-w` ends this\)"):
            of(mode, me)()
    with pytest.raises(Refused, match=f"belongs to another user \\(number {me + 1}\\)"):
        of(0o600, me + 1)()
