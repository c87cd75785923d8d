"""Programs behind an address: one process compiles and others load. Damage there costs one compile."""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pytest
import torch

import torch_xla.cache
import torch_xla.runtime as xr
from torch_xla._engine import remote_files
from torch_xla._engine.compat.names import jax as jax_names
from torch_xla._engine.compile.disk import cache_folder, disk_cache, remote_store, signing_key
from torch_xla._engine.compile.disk.remote_store import RemoteStore
from torch_xla._engine.metrics import counters
from torch_xla._engine.step.schedule import clear_schedules

SECOND = 30.0


def fail(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address at which even what compiles at once is kept, and a first machine."""
    monkeypatch.setattr(disk_cache, "WORTH_KEEPING_SECONDS", 0.0)
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_KEY", str(tmp_path / "key"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first machine"))
    found = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", found)
    cache_folder._warned.clear()
    torch_xla.sync()  # a read would also run what an earlier test has left, in a program of its own
    clear_schedules()
    yield found
    clear_schedules()


def names(address: str) -> list[str]:
    files, root = fsspec.core.url_to_fs(address)
    return [each.rpartition("/")[2] for each in files.find(root)]


def result() -> list[float]:
    """A program as another process would see it for the first time, if its store is another one, too."""
    clear_schedules()
    remote_store.at.cache_clear()
    x = torch.arange(4.0).to("xla")
    return (x.sin() * 3.0 + x.cumsum(0)).tolist()


def counted() -> tuple[int, int]:
    compiled, hits = (counters.value_of(name) or 0 for name in ("StableHloCompile", "PersistentCacheHit"))
    return compiled, hits


def test_another_machine_loads_what_one_compiled(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = result()
    assert counted() == (1, 0)
    (kept,) = (name for name in names(address) if name.endswith(".xla"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second machine"))
    assert result() == expected and counted() == (1, 1)
    place = cache_folder.folder()
    assert place is not None and place.is_relative_to(tmp_path / "second machine") and (place / kept).exists()
    assert result() == expected and counted() == (1, 2)  # from the folder
    assert all("compiling" not in name for name in names(address))


def test_an_address_is_chosen_by_the_program_too(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "")
    xr.initialize_cache(f"{address}/other")
    try:
        result()
        assert [name for name in names(f"{address}/other") if name.endswith(".xla")]
    finally:
        cache_folder.choose(None)


@pytest.mark.parametrize("how", ["cut", "garbage", "foreign"])
def test_what_is_damaged_or_planted_costs_one_compile(
    how: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = result()
    (kept,) = (name for name in names(address) if name.endswith(".xla"))
    files, root = fsspec.core.url_to_fs(address)
    path = f"{root}/{kept}"
    whole = files.cat_file(path)
    if how == "foreign":
        monkeypatch.setenv("XLA_PERSISTENT_CACHE_KEY", str(tmp_path / "another key"))
    else:
        files.pipe_file(path, whole[:-9] if how == "cut" else b"garbage")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second machine"))
    loads: list[object] = []
    monkeypatch.setattr(jax_names, "load", lambda *args: loads.append(args))
    if how == "foreign":
        with pytest.warns(UserWarning, match=f"{address}/{kept} is not signed with the key"):
            assert result() == expected
    else:
        assert result() == expected
    monkeypatch.undo()
    assert counted() == (2, 0) and loads == []
    reasons = torch_xla.cache.misses()
    assert any("damaged" in reason or "signed" in reason for reason in reasons), reasons
    assert files.cat_file(path) != b"garbage" and len(files.cat_file(path)) >= len(whole) - 1000


def test_a_store_that_cannot_be_reached_is_named_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str) -> None:
        raise PermissionError("no credentials")

    monkeypatch.setattr(remote_files, "files_at", refuse)
    with pytest.warns(UserWarning, match=f"at {address} are not used: PermissionError: no credentials. Each machine"):
        first = result()
    assert result() == first and counted() == (1, 1)  # by the folder


def test_nothing_is_written_to_a_store_that_is_only_read(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_READ_ONLY", "1")
    result()
    assert names(address) == []


def stores(count: int) -> list[RemoteStore]:
    address = f"memory://{uuid.uuid4().hex}"
    return [RemoteStore(address, fail) for _ in range(count)]


def test_others_wait_for_the_one_that_compiles() -> None:
    one, *others = stores(6)
    found: list[bool] = []
    ended = threading.Event()

    def wait(store: RemoteStore) -> None:
        with store.turn("program", ["program"]) as is_there:
            found.append(is_there and ended.is_set())

    threads = [threading.Thread(target=wait, args=(store,)) for store in others]
    with one.turn("program", ["program"]) as is_there:
        assert not is_there
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        assert found == []
        with others[0].turn("another", ["another"]) as is_there:
            assert not is_there
        one.put("program", b"compiled")
        ended.set()
    for thread in threads:
        thread.join(SECOND)
    assert found == [True] * 5
    assert all(store.fetch("program") == b"compiled" for store in others)


def test_a_turn_that_is_not_renewed_passes_to_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_store, "DEAD_AFTER", 0.5)
    monkeypatch.setattr(remote_store, "RENEWED_EVERY", 1000.0)
    one, other = stores(2)
    with one.turn("program", ["program"]):
        begun = time.monotonic()
        with other.turn("program", ["program"]) as is_there:
            assert not is_there and time.monotonic() - begun > 0.4
        assert other._ask(lambda files, root: files.find(f"{root}/compiling")) == []


@pytest.mark.parametrize("dead", [1, 3])
def test_of_several_that_find_a_process_dead_one_compiles(dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All find it dead before one of them takes the turn: the others wait for that one."""
    count = 6
    *gone, one, last = stores(dead + 2)
    others = [RemoteStore(one.address, fail) for _ in range(count)]
    found_dead = threading.Barrier(count)
    passed = threading.local()
    pass_over = remote_store._Lease.pass_over

    def meet(lease: remote_store._Lease, content: bytes) -> None:
        pass_over(lease, content)
        passed.times = getattr(passed, "times", 0) + 1
        if passed.times == dead:
            found_dead.wait(SECOND)

    monkeypatch.setattr(remote_store, "RENEWED_EVERY", 1000.0)
    monkeypatch.setattr(remote_store, "DEAD_AFTER", 0.3)
    for generation, store in enumerate(gone):
        lease = remote_store._Lease(store._ask, "program")
        for content in range(generation):
            lease.pass_over(str(content).encode())
        assert lease.take()
    monkeypatch.setattr(remote_store._Lease, "pass_over", meet)
    compiled = []

    def work(store: RemoteStore) -> None:
        with store.turn("program", ["program"]) as is_there:
            if not is_there:
                monkeypatch.setattr(remote_store, "DEAD_AFTER", 1000.0)  # as one that renews its lease
                compiled.append(store)
                time.sleep(0.3)
                store.put("program", b"compiled")

    threads = [threading.Thread(target=work, args=(store,)) for store in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECOND)
    assert len(compiled) == 1
    with last.turn("program", ["program"]) as is_there:
        assert is_there


def test_a_turn_that_is_renewed_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_store, "DEAD_AFTER", 3.0)
    monkeypatch.setattr(remote_store, "RENEWED_EVERY", 0.05)
    one, other = stores(2)
    entered = threading.Event()

    def wait() -> None:
        with other.turn("program", ["program"]):
            entered.set()

    thread = threading.Thread(target=wait)
    with one.turn("program", ["program"]):
        thread.start()
        assert not entered.wait(4.0)
    assert entered.wait(SECOND)
    thread.join(SECOND)


# A machine of the job: its own folder, the common address. The last argument says what it does.
MACHINE = """
import os, sys
import fsspec  # type: ignore[import-untyped]
import torch, torch_xla
from torch_xla._engine.compat.names import jax as jax_names
from torch_xla._engine import remote_files
from torch_xla._engine.compile.disk import disk_cache, remote_store
from torch_xla._engine.metrics import counters
disk_cache.WORTH_KEEPING_SECONDS = 0.0
remote_store.DEAD_AFTER, remote_store.RENEWED_EVERY = 6.0, 0.5
if sys.argv[1] == "dies":
    disk_cache.keep = lambda *args, **kwargs: os.kill(os.getpid(), 9)
x = torch.arange(5.0).to("xla")
values = [(x.sin() * 3 + x.cumsum(0)).tolist(), x.softmax(0).tolist()]
print(*(counters.value_of(name) or 0 for name in ("StableHloCompile", "PersistentCacheHit")), values)
"""


def machine(number: int, address: str, tmp_path: Path, what: str, **more: str) -> "subprocess.Popen[str]":
    settings = {
        **os.environ, "XDG_CACHE_HOME": str(tmp_path / str(number)), "XLA_PERSISTENT_CACHE_PATH": address,
        "XLA_PERSISTENT_CACHE_KEY": str(tmp_path / "key"), "PYTHONPATH": os.pathsep.join(sys.path), **more,
    }  # fmt: skip
    arguments = [sys.executable, "-W", "ignore", "-c", MACHINE, what]
    return subprocess.Popen(arguments, env=settings, stdout=subprocess.PIPE, text=True)


def compile_once_on_machines(address: str, tmp_path: Path, **more: str) -> None:
    signing_key._make(tmp_path / "key")
    dead = machine(0, address, tmp_path, "dies", **more)
    dead.communicate(timeout=200)
    assert dead.returncode == -signal.SIGKILL
    started = [machine(number, address, tmp_path, "lives", **more) for number in range(1, 4)]
    lines = [each.communicate(timeout=300)[0].split(maxsplit=2) for each in started]
    assert len({values for _, _, values in lines}) == 1, lines
    compiled, hits = (sum(int(each[place]) for each in lines) for place in (0, 1))
    assert compiled == 2 and hits == 4, lines  # 3 machines, 2 programs


@pytest.mark.slow
def test_of_several_machines_one_compiles_each_program_and_a_dead_one_is_noticed(tmp_path: Path) -> None:
    compile_once_on_machines(f"file://{tmp_path}/store", tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("moto") is None or importlib.util.find_spec("s3fs") is None,
    reason="an S3 server: pip install s3fs 'moto[s3,server]'",
)
def test_machines_share_a_bucket(tmp_path: Path) -> None:
    server = importlib.import_module("moto.server").ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        settings = {
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "FSSPEC_S3_ENDPOINT_URL": f"http://{host}:{port}",
        }  # fmt: skip
        fsspec.filesystem("s3", key="test", secret="test", endpoint_url=settings["AWS_ENDPOINT_URL"]).mkdir("bucket")
        compile_once_on_machines("s3://bucket/programs", tmp_path, **settings)
    finally:
        server.stop()
