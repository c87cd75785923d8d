"""Computations that come in as HLO."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.export.hlo_import import from_hlo


def proto(function: object, *shapes: tuple[int, ...]) -> bytes:
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    lowered = jax.jit(function).lower(*arguments)  # type: ignore[call-overload]
    return bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


def test_a_module_is_a_function_again() -> None:
    computation = from_hlo("mine", proto(lambda x, y: jnp.sin(x) @ y, (2, 3), (3, 4)))
    assert computation.__name__ == computation.name == "mine"
    assert [each.shape for each in computation.parameters] == [(2, 3), (3, 4)]
    x, y = np.ones((2, 3), np.float32), np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(computation(x, y), np.sin(x) @ y, rtol=1e-6)
    with pytest.raises(TypeError, match="computation 'mine' takes 2 values; got 1"):
        computation(x)


def test_several_results_are_a_tuple() -> None:
    first, second = from_hlo("two", proto(lambda x: (x + 1, x * 2), (3,)))(np.ones(3, np.float32))
    assert first.tolist() == second.tolist() == [2, 2, 2]


def test_bytes_that_are_no_module_are_refused() -> None:
    with pytest.raises(ValueError):
        from_hlo("none", b"nothing of the kind")
