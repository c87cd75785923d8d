"""The settings in force at a lowering: one value while nothing changes, and another for each changed setting."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import pytest

from torch_xla._engine import compiler_options, precision
from torch_xla._engine.compile import settings_in_force


@contextmanager
def chosen(choose: Callable[[], Callable[[], object]]) -> Iterator[None]:
    undo = choose()
    try:
        yield
    finally:
        undo()


def of_products() -> Callable[[], object]:
    precision.choose("default")
    return precision.forget


def of_dtypes() -> Callable[[], object]:
    patch = pytest.MonkeyPatch()
    patch.setenv("XLA_USE_BF16", "1")
    return patch.undo


CHANGES = {
    "precision": lambda: chosen(of_products),
    "dtypes": lambda: chosen(of_dtypes),
    "options": lambda: chosen(lambda: compiler_options.choose({"xla_cpu_enable_fast_math": True})),
    "jax_default_matmul_precision": lambda: jax.default_matmul_precision("bfloat16"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_setting_is_seen_while_it_holds(name: str) -> None:
    before = settings_in_force.now()
    assert settings_in_force.now() is before
    with CHANGES[name]():
        changed = settings_in_force.now()
        assert changed != before and settings_in_force.now() is changed
        differ = dict(set(changed.texts().items()) ^ set(before.texts().items()))
        assert set(differ) == {name}
    assert settings_in_force.now() == before and hash(settings_in_force.now()) == hash(before)


def test_a_setting_of_jax_holds_in_its_thread_alone() -> None:
    before = settings_in_force.now()
    others: list[settings_in_force.Settings] = []
    with jax.default_matmul_precision("tensorfloat32"):
        here = settings_in_force.now()
        thread = threading.Thread(target=lambda: others.append(settings_in_force.now()))
        thread.start()
        thread.join()
        assert others == [before] and settings_in_force.now() == here != before


def test_64_bit_types_are_no_setting_because_each_trace_decides() -> None:
    before = settings_in_force.now()
    with jax.enable_x64(not jax.config.jax_enable_x64):
        assert settings_in_force.now() == before


def test_another_process_can_be_told() -> None:
    texts = settings_in_force.now().texts()
    assert json.loads(json.dumps(texts)) == texts and " at 0x" not in str(texts)
