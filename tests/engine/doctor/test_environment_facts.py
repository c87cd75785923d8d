"""The doctor's view: settings, and a probe that ends, crashes or hangs."""

import subprocess
import sys

import pytest

from torch_xla._engine.doctor import environment_facts
from torch_xla._engine.doctor.findings import REMOVED


def test_the_settings_that_are_known_are_those_that_are_read() -> None:
    known = environment_facts.known_settings()
    assert {"XLA_SYNC_WAIT", "PJRT_DEVICE", "XLA_FIND_NAN"} <= known
    assert not known & REMOVED.keys()


def test_every_value_that_cannot_be_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment_facts._unreadable() == {}
    monkeypatch.setenv("XLA_MAX_ASYNC_QUEUE", "many")
    monkeypatch.setenv("XLA_STAGE_OPERATIONS", "few")
    found = environment_facts._unreadable()
    assert set(found) == {"XLA_MAX_ASYNC_QUEUE", "XLA_STAGE_OPERATIONS"}
    assert "many" in found["XLA_MAX_ASYNC_QUEUE"] and "few" in found["XLA_STAGE_OPERATIONS"]


def probe(program: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-S", "-E", "-c", f"import sys, os, time; {program}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


BEGUN = """print('{"stage": "jax", "state": "started"}', flush=True); """


def test_the_last_word_of_each_stage_counts() -> None:
    program = (
        BEGUN + """print('noise'); print('{"stage": "jax", "state": "ended", "version": "1"}'); sys.stderr.write('w')"""
    )
    assert environment_facts.end_of_probe(probe(program), 60) == ({"jax": {"state": "ended", "version": "1"}}, 0, "w")


def test_a_crash_leaves_what_was_said_before_it() -> None:
    program = BEGUN + """os.write(1, b'{"stage": "jax", "sta'); os._exit(9)"""
    assert environment_facts.end_of_probe(probe(program), 60) == ({"jax": {"state": "started"}}, 9, "")


def test_a_probe_that_hangs_is_ended() -> None:
    process = probe(BEGUN + "time.sleep(600)")
    stages, status, _ = environment_facts.end_of_probe(process, 0.4)
    assert status is None and stages in ({"jax": {"state": "started"}}, {}) and process.returncode is not None
