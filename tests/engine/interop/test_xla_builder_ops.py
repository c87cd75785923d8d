"""XLA's operations by the names of its builder, against NumPy."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.interop import xla_builder_ops
from torch_xla._engine.interop.xla_builder_ops import FORMS

X = np.array([[3.0, -1.0, 2.0], [0.5, 4.0, -2.5]], np.float32)


def test_scalars_and_sizes_of_one_are_repeated_and_dtypes_agree() -> None:
    np.testing.assert_array_equal(FORMS["Sub"](jnp.float32(1), jnp.asarray(X)), 1 - X)
    np.testing.assert_array_equal(FORMS["Max"](jnp.asarray(X), jnp.zeros((2, 1), np.float32)), np.maximum(X, 0))
    with pytest.raises(TypeError, match="both operands have one dtype; got float32 and int32. Use Op.cast"):
        FORMS["Add"](jnp.asarray(X), jnp.ones((2, 3), np.int32))
    with pytest.raises(ValueError, match=r"operands have one rank, or one is a scalar; got \(2, 3\) and \(3,\)"):
        FORMS["Add"](jnp.asarray(X), jnp.ones(3, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(
    "comparator",
    [lambda a, b: a < b, lambda a, b: b < a, lambda a, b: a > b, lambda a, b: abs(a) < abs(b)],
    ids=["less", "less, turned round", "greater", "by size"],
)
def test_sorting_by_any_comparator(comparator: Callable[..., Any], axis: int) -> None:
    descending = bool(comparator(2.0, 1.0))
    keys = np.abs(X) if comparator(0.5, -3.0) and comparator(-0.5, 3.0) else X
    order = np.argsort(-keys if descending else keys, axis, kind="stable")
    np.testing.assert_array_equal(
        xla_builder_ops.sort(jnp.asarray(X), comparator=comparator, dimension=axis), np.take_along_axis(X, order, axis)
    )


def test_arrays_are_sorted_together_and_equal_ones_stay_in_order() -> None:
    keys, values = np.array([2, 1, 2, 1, 0]), np.arange(5)
    for comparator in (lambda a, b, c, d: a < b, lambda a, b, c, d: a * 1 < b * 1):
        found = xla_builder_ops.sort(jnp.asarray(keys), jnp.asarray(values), comparator=comparator)
        assert found[0].tolist() == [0, 1, 1, 2, 2] and found[1].tolist() == [4, 1, 3, 0, 2]


def test_reductions_windows_and_pooling() -> None:
    add = lambda a, b: (a + b,)  # noqa: E731
    np.testing.assert_allclose(xla_builder_ops.reduce(X, np.float32(1), computation=add, dimensions=[1]), X.sum(1) + 1)
    np.testing.assert_allclose(xla_builder_ops.reduce_all(X, np.float32(0), computation=add), X.sum(), rtol=1e-6)
    pooled = xla_builder_ops.max_pool(
        jnp.asarray(X)[None, None], kernel_size=[1, 2], stride=[1, 1], batch_dimension=0, feature_dimension=1,
        spatial_dimensions=[2, 3], padding=[(0, 0), (1, 0)],
    )  # fmt: skip
    np.testing.assert_array_equal(
        pooled[0, 0], np.maximum(X, np.pad(X, ((0, 0), (1, 0)), constant_values=-np.inf)[:, :3])
    )
    with pytest.raises(ValueError, match="this computation gives one value; it gave 2"):
        xla_builder_ops.reduce_all(X, np.float32(0), computation=lambda a, b: (a, b))


def test_gather_and_scatter_by_vectors_along_any_dimension() -> None:
    rows = xla_builder_ops.gather(
        jnp.asarray(X), jnp.array([[1, 0]]), offset_dims=[1], collapsed_slice_dims=[0], start_index_map=[0],
        index_vector_dim=0,
    )  # fmt: skip
    np.testing.assert_array_equal(rows, X[[1, 0]])
    found = xla_builder_ops.scatter(
        jnp.asarray(X), jnp.array([1, 5]), jnp.ones((2, 3), np.float32), computation=lambda old, new: old - new,
        update_window_dims=[1], inserted_window_dims=[0], scatter_dims_to_operand_dims=[0], index_vector_dim=1,
    )  # fmt: skip
    np.testing.assert_array_equal(found, X - [[0], [1]])  # indices outside are ignored


@pytest.mark.slow
def test_branches_loops_and_maps() -> None:
    halve = {"true_computation": lambda x: x / 2, "false_computation": lambda x: -x}
    assert FORMS["Conditional"](jnp.array(True), 3.0, 5.0, **halve) == 1.5
    assert FORMS["Conditional"](jnp.array(False), 3.0, 5.0, **halve) == -5
    grown = FORMS["While"](jnp.int32(1), condition_computation=lambda n: n < 50, body_computation=lambda n: n * 3)
    assert int(grown) == 81
    mapped = FORMS["Map"](X, X, computation=lambda a, b, k: a * b + k, dimensions=[0, 1], static_operands=[1])
    np.testing.assert_array_equal(mapped, X * X + 1)
    with pytest.raises(ValueError, match="Map goes over all dimensions, 0 to 1; got"):
        FORMS["Map"](X, computation=jnp.sin, dimensions=[0])


@settings(max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_the_size_that_is_missing_is_worked_out(size: list[int], data: Any) -> None:
    place = data.draw(st.integers(0, len(size) - 1))
    assert (
        xla_builder_ops.inferred([int(np.prod(size))], [-1 if at == place else each for at, each in enumerate(size)])
        == size
    )
    assert xla_builder_ops.inferred(size, size) == size


@pytest.mark.parametrize(("size", "sizes"), [((3, 4), (5, -1)), ((0, 4), (0, -1)), ((4,), (-1, -1)), ((4,), (3,))])
def test_sizes_that_do_not_come_out_even_are_refused(size: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"a value of size \[.*\] cannot be reshaped to \["):
        xla_builder_ops.inferred(size, sizes)


def test_every_form_is_a_function() -> None:
    assert all(callable(form) for form in FORMS.values()) and len(FORMS) > 70
    for name, same in (("Sin", np.sin), ("Exp", np.exp), ("Neg", np.negative), ("Atan", np.arctan)):
        np.testing.assert_allclose(FORMS[name](jnp.asarray(X)), same(X), rtol=1e-6)
    assert int(jax.jit(FORMS["GetDimensionSize"], static_argnames="dimension")(X, dimension=1)) == 3
