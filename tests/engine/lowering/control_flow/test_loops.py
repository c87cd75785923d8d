"""PyTorch's loops and branches as JAX's: what the bodies compute, round by round."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from torch_xla._engine.lowering.control_flow import loops

KEY = jax.random.key(3, impl="rbg")


@pytest.fixture(autouse=True)
def as_programs_are_lowered() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def graph(function: Callable[..., Any], *examples: torch.Tensor) -> GraphModule:
    return make_fx(function)(*[each.clone() for each in examples])  # what is one object is one input


X, ONE = torch.ones(2), torch.tensor(1)


def test_a_while_loop_carries_its_values() -> None:
    condition = graph(lambda n, x, step: [n < 5], ONE, X, X)
    step = graph(lambda n, x, step: [n + 1, x * 2 + step], ONE, X, X)
    n, x = loops.while_loop(condition, step, (np.array(2), np.ones(2, np.float32)), (np.full(2, 0.5, np.float32),))
    assert int(n) == 5 and x.tolist() == [11.5, 11.5]
    n, x = loops.while_loop(condition, step, (np.array(7), np.ones(2, np.float32)), (np.ones(2, np.float32),))
    assert int(n) == 7 and x.tolist() == [1, 1]  # not once
    assert x.dtype == np.float32 and jnp.issubdtype(n.dtype, jnp.integer)


def test_a_branch_is_chosen_by_a_value_or_by_python() -> None:
    double, negate = graph(lambda x: [x * 2], X), graph(lambda x: [-x], X)
    for predicate, expected in ((True, 2), (False, -1), (jnp.array(True), 2), (jnp.array([0]), -1), (jnp.array(3), 2)):
        (found,) = loops.cond(predicate, double, negate, (jnp.ones(2),))
        assert found.tolist() == [expected] * 2


def test_a_map_and_a_scan_go_over_slices() -> None:
    xs = jnp.arange(6.0, dtype=np.float32).reshape(3, 2)
    (mapped,) = loops.map_loop(graph(lambda x, w: [x * w], X, X), (xs,), (jnp.array([1.0, 10.0]),))
    np.testing.assert_array_equal(mapped, xs * np.array([1, 10]))
    combine = graph(lambda total, x, w: [total + x, total * w], X, X, X)
    total, before = loops._graph_scan(combine, (jnp.zeros(2),), (xs,), (jnp.full(2, 2.0),))
    np.testing.assert_array_equal(total, xs.sum(0))
    np.testing.assert_array_equal(before, 2 * (np.cumsum(xs, 0) - xs))
    total, before = loops._graph_scan(combine, (jnp.zeros(2),), (xs,), (jnp.ones(2),), 3, True)
    np.testing.assert_array_equal(before, np.cumsum(xs[::-1], 0)[::-1] - xs)


def test_a_scan_without_slices_has_a_length_and_keeps_the_dtypes_of_what_it_carries() -> None:
    combine = graph(lambda n: [n * 1.5, n], torch.tensor(1.0))
    last, all_of_them = loops._graph_scan(combine, (jnp.array(2, np.int32),), (), (), 3)
    assert last.dtype == np.int32 and all_of_them.tolist() == [2, 3, 4] and int(last) == 6


@pytest.mark.slow
def test_an_associative_scan_combines_neighbours() -> None:
    xs = jnp.arange(1.0, 8, dtype=np.float32).reshape(7, 1)
    (found,) = loops.associative_scan(graph(lambda a, b: [a * b], X, X), (xs,), ())
    np.testing.assert_allclose(found, np.cumprod(xs, 0))


@pytest.mark.slow
def test_every_round_draws_from_a_key_of_its_own() -> None:
    draw = graph(lambda x: [torch.bernoulli(x)], torch.full((64,), 0.5))
    (drawn,) = loops.map_loop(draw, (jnp.full((4, 64), 0.5),), (), key=KEY)
    assert len({row.tobytes() for row in np.asarray(drawn)}) == 4
    (again,) = loops.map_loop(draw, (jnp.full((4, 64), 0.5),), (), key=KEY)
    np.testing.assert_array_equal(drawn, again)
    two = graph(lambda x: [torch.bernoulli(x), torch.bernoulli(x)], torch.full((64,), 0.5))
    first, second = loops.body(two)((jnp.full(64, 0.5),), KEY)
    assert first.tolist() != second.tolist()
