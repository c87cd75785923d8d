"""Computations put together operation by operation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.interop import xla_builder
from torch_xla._engine.interop.xla_builder import Builder, Node, array, operation, parameter, text_of

VECTOR, SCALAR = array("f32", (3,)), array("f32", ())


def started() -> tuple[Builder, Node, Node]:
    builder = Builder("mine")
    return builder, parameter(builder, 0, VECTOR), parameter(builder, 1, SCALAR)


def test_a_computation_is_a_function_of_its_parameters() -> None:
    builder, x, y = started()
    total = operation("Mul", builder, [x, operation("Add", builder, [y, y], {})], {})
    both = operation("Tuple", builder, [total, x], {})
    computation = both.computation("twice")
    found = computation(jnp.arange(3.0), jnp.float32(2.0))
    np.testing.assert_array_equal(found[0], [0, 4, 8])
    np.testing.assert_array_equal(found[1], [0, 1, 2])
    assert computation.__name__ == "twice" and computation.parameters == [VECTOR, SCALAR]
    assert text_of(computation.described) == "(f32[3], f32[3])"
    with pytest.raises(TypeError, match="computation 'twice' takes 2 values; got 1"):
        computation(jnp.ones(3))
    assert "multiply" in xla_builder.hlo_text(computation, computation.parameters)


def test_each_operation_runs_once_however_often_it_is_used() -> None:
    builder, x, _ = started()
    calls: list[int] = []
    node = Node(builder, "count", lambda value: calls.append(1) or value + 1, (x,), VECTOR)
    for _ in range(6):
        node = operation("Add", builder, [node, node], {})
    found = node.computation("deep")(jnp.zeros(3), jnp.zeros(()))
    assert len(calls) == 1 and found.tolist() == [64] * 3


def test_mistakes_are_told_where_they_are_made() -> None:
    builder, x, y = started()
    with pytest.raises(ValueError, match="builder 'mine' has a parameter 0 already"):
        parameter(builder, 0, SCALAR)
    with pytest.raises(ValueError, match="the builder has no operation 'Plus'; it has Abs, Acos"):
        operation("Plus", builder, [x], {})
    with pytest.raises(ValueError, match="Add takes operands of one builder; got some of 'mine' and 'other'"):
        operation("Add", builder, [x, parameter(Builder("other"), 0, VECTOR)], {})
    whole = operation("ConvertElementType", builder, [x], {"to_type": np.int32})
    with pytest.raises(TypeError, match=r"^Add\(f32\[3\], s32\[3\]\): both operands have one dtype"):
        operation("Add", builder, [x, whole], {})
    sparse = Builder("sparse")
    last = parameter(sparse, 2, VECTOR)
    with pytest.raises(ValueError, match=r"computation 'c' has parameters \[2\]; number 0 is missing"):
        last.computation("c")


def test_descriptions_are_those_of_xla() -> None:
    assert text_of(array("bf16", (2, 3))) == "bf16[2,3]" and text_of(SCALAR) == "f32[]"
    assert all(xla_builder.name_of(xla_builder.jax_dtype(name)) == name for name in xla_builder.NAMES)
    with pytest.raises(ValueError, match="'f31' is no element type; known are pred, u8"):
        array("f31", ())
    with pytest.raises(TypeError, match="this is a tuple of 2; take an element with get_tuple_element"):
        xla_builder.array_of((VECTOR, SCALAR))
    assert xla_builder.array_of(VECTOR) is VECTOR and isinstance(VECTOR, jax.ShapeDtypeStruct)
