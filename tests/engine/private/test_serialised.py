"""An executable that went through bytes and plain descriptions is what JAX compiled; nothing is pickled."""

import pickle
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.private import jax as private

DEVICE = jax.devices("cpu")[0]
PLACED = jax.sharding.SingleDeviceSharding(DEVICE)


def compiled(function: Callable[..., Any], *arguments: Any, **options: Any) -> jax.stages.Compiled:
    described = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=PLACED) for each in arguments]
    return jax.jit(function, keep_unused=True, **options).trace(*described).lower().compile()


def again(executable: jax.stages.Compiled, donated: tuple[int, ...] = ()) -> jax.stages.Compiled:
    found = private.serialised(executable)
    weak = set(found.weak)
    inputs = [
        jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=PLACED) for each in jax.tree.leaves(executable.args_info)
    ]
    outputs = [
        jax.ShapeDtypeStruct(each.shape, each.dtype, weak_type=place in weak, sharding=PLACED)
        for place, each in enumerate(jax.tree.leaves(executable.out_info))
    ]
    return private.compiled_from(private.load(found.data, [DEVICE]), found.name, [DEVICE], inputs, outputs, donated)


def instructions(executable: jax.stages.Compiled) -> list[str]:
    """Those of the HLO, without their places in the source, of which XLA keeps others."""
    return [re.sub(r", metadata=\{.*", "", line) for line in str(executable.as_text()).splitlines() if " = " in line]


def test_it_gives_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something was pickled or unpickled")

    x, y = jnp.arange(6.0).reshape(2, 3), jnp.ones((3, 2), jnp.bfloat16)
    first = compiled(lambda x, y: (x @ y, (y > 0).sum(), jnp.asarray(3.0), x[:0]), x, y)
    for name in ("loads", "load", "Unpickler", "dumps", "dump", "Pickler"):
        monkeypatch.setattr(pickle, name, refuse)
    second = again(first)
    for ours, theirs in zip(second(x, y), first(x, y), strict=True):
        assert ours.aval == theirs.aval and ours.sharding == theirs.sharding and ours.committed == theirs.committed
        np.testing.assert_array_equal(ours, theirs)
    assert second.in_avals == first.in_avals and second.out_tree == first.out_tree
    assert instructions(second) == instructions(first) != []
    assert second.memory_analysis().temp_size_in_bytes == first.memory_analysis().temp_size_in_bytes
    assert second.input_formats == first.input_formats and second.output_formats == first.output_formats


def test_it_takes_what_numpy_holds_and_refuses_another_dtype() -> None:
    x = jnp.arange(3.0)
    second = again(compiled(lambda x: (x * 2,), x))
    assert second(np.arange(3, dtype=np.float32))[0].tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(TypeError):
        second(jnp.arange(3))


def test_it_gives_inputs_away_and_starts_directly() -> None:
    x = jnp.arange(3.0)
    second = again(compiled(lambda x: (x + 1,), x, donate_argnums=0), (0,))
    assert [info.donated for info in jax.tree.leaves(second.args_info)] == [True]
    start = private.starter(second)
    assert start is not None
    ((result,),) = start([[x]])
    assert x.is_deleted() and result.tolist() == [1.0, 2.0, 3.0]


def test_what_holds_objects_of_this_process_is_refused() -> None:
    x = jnp.arange(3.0)
    describes = jax.ShapeDtypeStruct((3,), x.dtype)
    calls_python = compiled(lambda x: (jax.pure_callback(lambda x: x, describes, x),), x)
    prints = compiled(lambda x: (jax.debug.print("{}", x), x)[1:], x)
    for executable in (calls_python, prints):
        with pytest.raises(ValueError, match="objects of this process"):
            private.serialised(executable)


def test_an_interrupt_is_not_taken_for_an_answer() -> None:
    class Interrupted:
        def get_parameter_layouts(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        private.compiled_from(Interrupted(), "name", [DEVICE], [], [], [])
