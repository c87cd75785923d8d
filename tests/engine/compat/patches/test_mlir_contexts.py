"""Modules that are lowered in one block after the other share an MLIR context, in one thread and for a while."""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.compat.patches import mlir_contexts


def lowered(number: int) -> jax.stages.Lowered:
    return jax.jit(lambda x: x * number + jnp.arange(3.0)).trace(jnp.ones(3)).lower()


def context_of(one: jax.stages.Lowered) -> Any:
    return one.compiler_ir().operation.context


def lent(number: int) -> jax.stages.Lowered:
    with mlir_contexts.kept():
        return lowered(number)


@pytest.fixture(autouse=True)
def none_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlir_contexts, "_kept", mlir_contexts._Kept())


def test_modules_of_such_blocks_share_one() -> None:
    one, two = lent(2), lent(3)
    assert context_of(one) == context_of(two) != context_of(lowered(4))
    for number, each in ((2, one), (3, two)):
        np.testing.assert_array_equal(each.compile()(jnp.ones(3)), number + np.arange(3.0))


def test_it_is_left_after_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlir_contexts, "MOST", 2)
    one, two, three = (context_of(lent(number)) for number in range(3))
    assert one == two != three


def test_other_threads_have_their_own() -> None:
    found: list[Any] = []
    first = context_of(lent(1))
    with mlir_contexts.kept():
        thread = threading.Thread(target=lambda: found.extend([context_of(lent(2)), context_of(lowered(3))]))
        thread.start()
        thread.join()
        assert context_of(lowered(4)) == first
    assert first not in found and found[0] != found[1]


def test_a_block_that_fails_ends_it() -> None:
    first = context_of(lent(1))
    with pytest.raises(ValueError, match="failed"), mlir_contexts.kept():
        raise ValueError("failed")
    assert context_of(lowered(2)) != first
