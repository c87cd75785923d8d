"""Whatever the cache folder contains, a program runs with correct results; no file in it is unpickled."""

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_xla.cache
from torch_xla._engine.compile.disk import cache_folder, disk_cache, executable_format, folder_limit, signing_key
from torch_xla._engine.compile.executable_key import key_of
from torch_xla._engine.ir.graph import Graph
from torch_xla._engine.metrics import counters
from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.step.schedule import clear_schedules

SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder that keeps even what compiles at once."""
    monkeypatch.setattr(disk_cache, "WORTH_KEEPING_SECONDS", 0.0)
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", str(tmp_path / "cache"))
    cache_folder._warned.clear()
    torch_xla.sync()  # a read would also run what an earlier test has left, in a program of its own
    clear_schedules()
    yield tmp_path / "cache"
    clear_schedules()


def result() -> list[float]:
    """A step as another process would see it for the first time."""
    clear_schedules()
    x = torch.arange(4.0).to("xla")
    return (x.sin() * 3 + x.cumsum(0)).tolist()


def hits() -> int:
    return counters.value_of("PersistentCacheHit") or 0


def only_file(folder: Path) -> Path:
    (path,) = folder.glob(f"*{cache_folder.SUFFIX}")
    return path


def rewritten(
    data: bytes,
    change: Callable[[dict[str, object]], object],
    body: bytes | None = None,
    sign: Callable[[bytes], bytes] = signing_key.signature,
) -> bytes:
    """A file with another header or body, a checksum that fits, and a signature."""
    _, _, _, rest = data.split(b"\n", 3)
    text, _, own = rest.partition(b"\n")
    header = json.loads(text)
    change(header)
    rest = json.dumps(header).encode() + b"\n" + (own if body is None else body)
    checksum = hashlib.sha256(rest).hexdigest().encode()
    return executable_format.MAGIC + checksum + b"\n" + sign(checksum) + b"\n" + rest


damage = st.one_of(
    st.tuples(st.just("flip"), st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=8)),
    st.tuples(st.just("cut"), st.floats(0, 1)),
    st.tuples(st.just("replace"), st.binary(max_size=200)),
    st.tuples(st.just("append"), st.binary(min_size=1, max_size=50)),
)


def damaged(data: bytes, how: tuple[str, object]) -> bytes:
    kind, argument = how
    if kind == "flip":
        changed = bytearray(data)
        for place, mask in argument:  # type: ignore[attr-defined]
            changed[int(place * (len(changed) - 1))] ^= mask
        return bytes(changed)
    if kind == "cut":
        return data[: int(argument * (len(data) - 1))]  # type: ignore[operator]
    return bytes(argument) if kind == "replace" else data + bytes(argument)  # type: ignore[call-overload,no-any-return]


@pytest.mark.filterwarnings("ignore:.* is not signed with the key")  # where the signature is what is damaged
@given(how=damage)
@SETTINGS
def test_no_damage_is_believed(folder: Path, how: tuple[str, object]) -> None:
    expected = result()
    path = only_file(folder)
    sound = path.read_bytes()
    changed = damaged(sound, how)
    path.write_bytes(changed)
    before = hits()
    assert result() == expected
    assert hits() - before == (changed == sound)
    assert executable_format.split(path.read_bytes())[0] == executable_format.split(sound)[0] or changed != sound


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "program",
    "environment",
    "seconds",
    "bytes",
    "name",
    "inputs",
    "outputs",
    "divided",
    "weak",
    "donated",
    "more",
)


@pytest.mark.slow
@given(field=st.sampled_from(FIELDS), value=json_values)
@SETTINGS
def test_a_header_that_lies_with_a_right_checksum_is_harmless(folder: Path, field: str, value: object) -> None:
    expected = result()
    path = only_file(folder)
    sound = path.read_bytes()
    path.write_bytes(rewritten(sound, lambda header: header.update({field: value})))
    assert torch_xla.cache.statistics().executables <= 1
    assert result() == expected


@given(body=st.binary(max_size=300), is_compressed=st.booleans())
@SETTINGS
def test_garbage_with_a_right_checksum_is_compiled_again(folder: Path, body: bytes, is_compressed: bool) -> None:
    expected = result()
    path = only_file(folder)
    packed = zlib.compress(body) if is_compressed else body
    path.write_bytes(rewritten(path.read_bytes(), lambda header: header.update(bytes=len(body)), packed))
    before = hits()
    assert result() == expected and hits() == before
    assert "was damaged" in torch_xla.cache.misses()[-1]


def test_what_inflates_without_end_is_not_inflated(folder: Path) -> None:
    expected = result()
    path = only_file(folder)
    path.write_bytes(rewritten(path.read_bytes(), lambda header: None, zlib.compress(bytes(200 << 20))))
    assert result() == expected
    assert "another length" in torch_xla.cache.misses()[-1]


def test_a_file_under_another_name_is_not_taken_for_it(folder: Path) -> None:
    expected = result()
    path = only_file(folder)
    clear_schedules()
    other = torch.arange(4.0).to("xla")
    assert (other * other + 1).tolist() == [1.0, 2.0, 5.0, 10.0]
    (second,) = set(folder.glob(f"*{cache_folder.SUFFIX}")) - {path}
    path.write_bytes(second.read_bytes())
    assert result() == expected
    assert "of another program than its name says" in torch_xla.cache.misses()[-1]


class Mark:
    """Leaves a mark if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_nothing_is_unpickled(folder: Path, tmp_path: Path) -> None:
    expected = result()
    path = only_file(folder)
    bomb = pickle.dumps(Mark(tmp_path / "mark"))
    change: Callable[[dict[str, object]], object] = lambda header: header.update(bytes=len(bomb))  # noqa: E731
    for data in (bomb, rewritten(path.read_bytes(), change, zlib.compress(bomb))):
        path.write_bytes(data)
        assert result() == expected
    assert not (tmp_path / "mark").exists()


def test_files_and_folders_that_others_may_write_are_refused(folder: Path) -> None:
    expected = result()
    path = only_file(folder)
    before = hits()
    for place, advice in ((path, "may write to"), (folder, "may write to")):
        mode = place.stat().st_mode & 0o777
        for extra in (0o020, 0o002):
            cache_folder._warned.clear()
            place.chmod(mode | extra)
            with pytest.warns(UserWarning, match=advice):
                assert result() == expected
            assert "an executable is code" in torch_xla.cache.misses()[-1]
        place.chmod(mode)
        if place is path:
            path.unlink()
            result()
    assert hits() == before
    assert result() == expected and hits() == before + 1


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="users are POSIX's")
def test_another_users_file_is_refused_and_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = result()
    path = only_file(folder)
    status = path.stat()
    with pytest.raises(executable_format.Refused, match="belongs to another user"):
        executable_format.refuse_others(
            path, os.stat_result((status.st_mode, 0, 0, 1, os.geteuid() + 1, 0, 0, 0, 0, 0))
        )
    executable_format.refuse_others(path, os.stat_result((status.st_mode, 0, 0, 1, 0, 0, 0, 0, 0, 0)))  # root's
    if os.geteuid() == 0:
        try:
            os.chown(path, 4321, 4321)
        except PermissionError:
            pytest.skip("this root may give nothing to others, and trusts what is root's")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: status.st_uid + 1)
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert result() == expected
    assert only_file(folder) == path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are POSIX's")
def test_what_is_no_file_does_not_hang(folder: Path) -> None:
    expected = result()
    path = only_file(folder)
    path.unlink()
    os.mkfifo(path, 0o600)
    assert result() == expected
    path.unlink()
    path.mkdir()
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert result() == expected


def test_a_full_disk_costs_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        first = result()
    assert result() == first
    assert [path for path in folder.rglob("*") if path.is_file()] == []


@pytest.mark.slow
@given(text=st.binary(max_size=100) | json_values.map(lambda value: json.dumps(value).encode()))
@SETTINGS
def test_a_damaged_note_of_baked_numbers_says_nothing(folder: Path, text: bytes) -> None:
    key = key_of(Graph((), (), ()), (), targets.of_device(jax.devices("cpu")[0]))
    disk_cache.note_baked(key, [0, 2])
    assert disk_cache.baked(key, 3) == [0, 2]
    assert disk_cache.baked(key, 2) == []
    (path,) = folder.glob("*.numbers")
    path.write_bytes(text)
    found = disk_cache.baked(key, 3)
    assert all(type(index) is int and 0 <= index < 3 for index in found)


def test_what_a_killed_writer_left_goes_and_what_one_writes_stays(folder: Path) -> None:
    result()
    old, new = folder / ".killed.part", folder / ".writing.part"
    old.write_bytes(bytes(1000))
    new.write_bytes(bytes(1000))
    os.utime(old, (time.time() - 2 * folder_limit._ABANDONED,) * 2)
    folder_limit.shrink(folder, 1 << 30)
    assert not old.exists() and new.exists() and only_file(folder).exists()


def test_the_limit_holds_at_every_moment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_SIZE", str(10_000 / 2**20))
    sizes = [3000, 9000, 500, 10_000, 10_001, *[700] * 60]
    for index, size in enumerate(sizes):
        cache_folder.adopt(folder, f"{index}.numbers", bytes(size))
        assert folder_limit.size_of(folder) <= 10_000
        assert (folder / f"{index}.numbers").exists() == (size <= 10_000)
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_SIZE", "0")
    cache_folder.adopt(folder, "none.numbers", b"x")
    assert not (folder / "none.numbers").exists()


def test_a_limit_that_is_no_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("lots", "-1", "nan", "inf", "1e300"):
        monkeypatch.setenv("XLA_PERSISTENT_CACHE_SIZE", text)
        with pytest.raises(ValueError, match="XLA_PERSISTENT_CACHE_SIZE is .* must be a number of MiB, 0 or more"):
            cache_folder.config.persistent_cache_bytes()


def test_a_home_that_is_not_there_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "~nobody-of-this-name/cache")
    with pytest.raises(ValueError, match="no such user here; give a whole path"):
        result()


WRITER = """
import sys
from pathlib import Path
from torch_xla._engine.compile.disk import cache_folder, executable_format, signing_key
header = executable_format.Header("0" * 32, {"a": "b"}, 1.0, 3_000_000, "f", (), (), (), (), ())
data = executable_format.joined(header, bytes(range(250)) * 12_000, signing_key.signature)
while True:
    cache_folder.adopt(Path(sys.argv[1]), "one.xla", data)
    Path(sys.argv[2]).touch()
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_never_leaves_half_a_file(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    begun = [tmp_path / "first", tmp_path / "second"]
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(place), str(path)]) for path in begun]
    while not all(path.exists() for path in begun):
        assert all(writer.poll() is None for writer in writers), "a writer has ended"
        time.sleep(0.01)
    seen = 0
    killed = threading.Timer(0.5, lambda: [writer.send_signal(signal.SIGKILL) for writer in writers])
    killed.start()
    while any(writer.poll() is None for writer in writers):
        try:
            executable_format.split(executable_format.contents(place / "one.xla"))
            seen += 1
        except FileNotFoundError:
            continue
    assert seen > 0
    executable_format.split((place / "one.xla").read_bytes())
    for path in place.glob(".*.part"):
        os.utime(path, (0, 0))
    folder_limit.shrink(place, 1 << 30)
    assert [path.name for path in place.iterdir()] == ["one.xla"]


UNSIGNED: dict[str, Callable[[bytes], bytes]] = {
    "without a signature": lambda checksum: b"",
    "signed with another key": lambda checksum: hashlib.sha256(checksum).hexdigest().encode(),
    "signed with no letters": lambda checksum: bytes(range(128, 192)),
}


@pytest.mark.parametrize("name", UNSIGNED)
def test_what_is_not_signed_never_reaches_xla(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = result()
    path = only_file(folder)
    sound = path.read_bytes()
    path.write_bytes(rewritten(sound, lambda header: None, sign=UNSIGNED[name]))
    with monkeypatch.context() as patched:
        patched.setattr(disk_cache.private, "load", lambda *_: pytest.fail("XLA was given it"))
        with pytest.warns(UserWarning, match="is not signed with the key .*cache.key, and an executable is code"):
            assert result() == expected
    assert "is not signed with the key" in torch_xla.cache.misses()[-1]
    before = hits()
    assert result() == expected and hits() == before + 1  # it was replaced


def test_a_bundle_of_another_user_is_signed_by_who_takes_it_over(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = result()
    torch_xla.cache.export(tmp_path / "programs.tar")
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_KEY", str(tmp_path / "another.key"))
    before = hits()
    with pytest.warns(UserWarning, match="cache import"):
        assert result() == expected and hits() == before
    torch_xla.cache.clear()
    assert torch_xla.cache.load(tmp_path / "programs.tar") == 1
    assert result() == expected and hits() == before + 1


def test_a_key_that_others_know_or_nobody_has_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = result()
    place = tmp_path / "a.key"
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_KEY", str(place))
    cases = [(b"k" * 32, 0o604, "may read"), (b"k" * 32, 0o620, "may write"), (b"k" * 31, 0o600, "holds 31 bytes")]
    for content, mode, told in cases:
        place.write_bytes(content)
        place.chmod(mode)
        cache_folder._warned.clear()
        with pytest.warns(UserWarning, match=told):
            assert result() == expected
    cache_folder._warned.clear()
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_KEY", str(place / "below a file"))
    with pytest.warns(UserWarning, match="no key to sign with: .* .XLA_PERSISTENT_CACHE_KEY names another file"):
        assert result() == expected
