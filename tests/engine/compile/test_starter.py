"""Programs start by XLA's own call where JAX's would do nothing else: the same results, donation and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from torch_xla._engine.compat.names.jax_starters import starter
from torch_xla._engine.step.schedule import clear_schedules
from torch_xla._engine.tensor.storage import value_of


def compiled(function: object, *arguments: jax.Array, **options: object) -> object:
    return jax.jit(function, keep_unused=True, **options).trace(*arguments).lower().compile()  # type: ignore[arg-type]


def test_it_gives_what_the_executable_gives() -> None:
    x, y = jnp.arange(4.0), jnp.ones(())
    executable = compiled(lambda x, y: (x + y, x.sum() > 1), x, y)
    start = starter(executable)
    assert start is not None
    (outputs,) = start([[x, y]])
    for ours, theirs in zip(outputs, executable(x, y), strict=True):  # type: ignore[operator]
        assert ours.aval == theirs.aval and ours.sharding == theirs.sharding
        np.testing.assert_array_equal(ours, theirs)


def test_it_gives_inputs_away() -> None:
    x = jnp.arange(4.0)
    start = starter(compiled(lambda x: (x + 1,), x, donate_argnums=0))
    assert start is not None
    started = start([[x]])
    assert not x.is_deleted()
    ((result,),) = started
    assert x.is_deleted() and result.tolist() == [1, 2, 3, 4]


def test_what_jax_has_to_look_after_goes_through_jax() -> None:
    x = jnp.arange(4.0)
    calls_the_host = lambda x: (jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((4,), x.dtype), x),)  # noqa: E731
    prints = lambda x: (jax.debug.print("{}", x), x)  # noqa: E731
    assert starter(compiled(calls_the_host, x)) is None
    assert starter(compiled(prints, x)) is None
    assert starter(lambda *arrays: arrays) is None
    leaves_one_out = jax.jit(lambda x, y: (x,)).trace(x, x).lower().compile()
    assert starter(leaves_one_out) is None


def test_a_wrong_buffer_is_refused() -> None:
    x = jnp.arange(4.0)
    start = starter(compiled(lambda x: (x + 1,), x))
    assert start is not None
    with pytest.raises(jax.errors.JaxRuntimeError):
        next(start([[jnp.arange(5.0)]]))


def test_programs_use_it() -> None:
    clear_schedules()
    x = torch.arange(3.0).to("xla")
    for _ in range(3):
        before = value_of(x).buffer
        x.add_(1)
        torch_xla.sync()
        assert before.is_deleted()
    assert x.tolist() == [3.0, 4.0, 5.0]
