"""Gathering and scattering along a dimension agrees with PyTorch on the CPU."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule
from tests.support.twins import check_same
from torch_xla._engine.lowering.indexing import scattering

aten = torch.ops.aten

NAN = float("nan")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(-4, 5, shape).to(dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_elements_and_slices_are_gathered(dtype: torch.dtype) -> None:
    operand = sample(dtype, 3, 4, 5)
    calls = []
    for dim in (0, 1, -1):
        size = operand.size(dim)
        calls.append(call(aten.gather.default, operand, dim, torch.randint(0, size, (2, 3, 4))))
        calls += [call(aten.index_select.default, operand, dim, torch.randint(0, size, shape)) for shape in ((7,), ())]
        calls.append(call(aten.index_select.default, operand, dim, torch.zeros(0, dtype=torch.int64)))
        calls.append(call(aten.index_select.default, operand, dim, torch.tensor([1, 0], dtype=torch.int32)))
    calls.append(call(aten.gather.default, operand, 1, torch.randint(0, 4, (3, 9, 5))))
    check_calls(calls)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_elements_are_scattered(dtype: torch.dtype) -> None:
    operand, source = sample(dtype, 3, 6, 5), sample(dtype, 3, 4, 6)
    calls = []
    for dim in (0, 1, -1):
        # Without equal indices: which of them wins is not defined.
        length = min(3, operand.size(dim))
        index = torch.argsort(torch.rand(2, 3, 4), dim).clamp(max=operand.size(dim) - 1)[:, :length]
        many = torch.randint(0, operand.size(dim), (2, 3, 4))
        calls.append(call(aten.scatter.src, operand, dim, index, source))
        calls.append(call(aten.scatter.value, operand, dim, many, 1))
        if not dtype.is_complex:
            calls.append(call(aten.scatter_add.default, operand, dim, many, source))
            calls.append(call(aten.scatter.reduce, operand, dim, many, source, reduce="add"))
            calls.append(call(aten.scatter.reduce, operand, dim, many, source, reduce="multiply"))
            calls.append(call(aten.scatter.value_reduce, operand, dim, many, 2, reduce="multiply"))
            calls.append(call(aten.scatter.value_reduce, operand, dim, many, 2, reduce="add"))
    check_calls(calls)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_what_meets_in_one_place_is_reduced(reduce: str, include_self: bool) -> None:
    calls = []
    for dtype in (torch.float32, torch.int64, torch.uint8):
        operand, source = sample(dtype, 4, 5), sample(dtype, 6, 5)
        for dim, shape in ((0, (6, 5)), (1, (4, 4)), (-1, (2, 5))):
            index = torch.randint(0, operand.size(dim), shape)
            calls.append(call(aten.scatter_reduce.two, operand, dim, index, source, reduce, include_self=include_self))
        if reduce != "sum":
            index = torch.tensor([0, 3, 3, 1, 0, 0])
            for dim, places, slices in ((0, index, source), (1, index[:3], source[:4, :3])):
                args = (operand, dim, places, slices, reduce)
                calls.append(call(aten.index_reduce.default, *args, include_self=include_self))
    check_calls(calls)


def test_reductions_of_narrow_floats_and_bools_agree() -> None:
    index, flags = torch.tensor([0, 0, 1, 3]), torch.tensor([True, False, False, True])
    numbers = torch.tensor([0.5, 1.5, -2.0, 3.0]).bfloat16()
    reductions = ("sum", "prod", "amax", "amin")
    calls = [call(aten.scatter_reduce.two, numbers, 0, index, numbers, r) for r in (*reductions, "mean")]
    check_calls([*calls, *(call(aten.scatter_reduce.two, flags, 0, index, flags, r) for r in reductions)])


def test_nan_wins_among_what_meets() -> None:
    operand, source = torch.tensor([1.0, NAN, 3.0]), torch.tensor([NAN, 5.0, 2.0, 4.0])
    index = torch.tensor([0, 1, 2, 2])
    check_calls(call(aten.scatter_reduce.two, operand, 0, index, source, r) for r in ("sum", "amax", "amin", "mean"))


def test_narrow_floats_add_up_in_float32() -> None:
    ones, index = torch.ones(1000, dtype=torch.bfloat16), torch.zeros(1000, dtype=torch.int64)
    for op in (aten.scatter_add.default, aten.index_add.default):
        assert apply_rule(op, torch.zeros(1).bfloat16(), 0, index, ones).tolist() == [1000]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_slices_are_added_copied_and_filled(dtype: torch.dtype) -> None:
    operand = sample(dtype, 3, 4, 5)
    calls = []
    for dim in (0, 1, -1):
        size = operand.size(dim)
        index = torch.randperm(size)[: size - 1]
        source = sample(dtype, *(size - 1 if d == dim % 3 else operand.size(d) for d in range(3)))
        calls.append(call(aten.index_copy.default, operand, dim, index, source))
        calls.append(call(aten.index_add.default, operand, dim, index // 2, source))
        if dtype is not torch.bool:
            calls.append(call(aten.index_add.default, operand, dim, index, source, alpha=3))
        calls.append(call(aten.index_fill.int_Scalar, operand, dim, index - size, 1))
        calls.append(call(aten.index_fill.int_Tensor, operand, dim, torch.tensor(0), torch.tensor(1).to(dtype)))
    check_calls(calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_slice_is_copied(dtype: torch.dtype) -> None:
    operand = sample(dtype, 2, 3, 4, 5)
    sources = {dim: sample(dtype, *(1 if d == dim else operand.size(d) for d in range(4))) for dim in range(4)}
    check_calls(
        call(aten.index_copy.default, operand, dim, torch.tensor([place]), sources[dim % 4])
        for dim, place in ((0, 1), (1, 0), (-2, 3), (3, 4))
    )
    for outside in (-1, 4, 1 << 40):  # nothing is written
        written = apply_rule(aten.index_copy.default, operand, 2, torch.tensor([outside]), operand[:, :, :1])
        assert torch.equal(written, operand)


def test_one_slice_is_written_in_place_whatever_reads_the_result() -> None:
    def step(cache: jax.Array, place: jax.Array, new: jax.Array) -> tuple[jax.Array, jax.Array]:
        written = scattering.index_copy(cache, 2, place, new)
        return written, jax.lax.dot_general(new, written, (((3,), (3,)), ((0, 1), (0, 1))))

    cache, new = jnp.ones((1, 4, 32, 8)), jnp.ones((1, 4, 1, 8))
    compiled = jax.jit(step, donate_argnums=0).lower(cache, jnp.zeros(1, np.int32), new).compile()
    entry = compiled.as_text().partition("ENTRY")[2]
    # XLA's kernel of a scatter alone writes in place; any other of the cache's size makes it anew.
    made = re.findall(r"(%\S+) = f32\[(?:1,)?4,32,8\]\S* (?:copy|fusion)\(", entry)
    assert [name for name in made if not name.startswith("%wrapped_scatter")] == [], entry


def test_a_fraction_of_a_source_is_added() -> None:
    operand, source, index = torch.randn(3, 2), torch.randn(4, 2), torch.tensor([0, 2, 2, 0])
    check_calls([call(aten.index_add.default, operand, 0, index, source, alpha=-0.25)])


NUMBER, ONE, FIRST = torch.tensor(2.0), torch.tensor([3.0]), torch.tensor(0)


@pytest.mark.parametrize(
    ("op", "rest"),
    [
        (aten.gather.default, (FIRST,)),
        (aten.gather.default, (FIRST.reshape(1),)),
        (aten.index_select.default, (FIRST.reshape(1),)),
        (aten.scatter.src, (FIRST, ONE[0])),
        (aten.scatter.value, (FIRST, 5)),
        (aten.scatter_add.default, (FIRST, ONE[0])),
        (aten.scatter_reduce.two, (FIRST, ONE[0], "amax")),
        (aten.index_add.default, (FIRST, ONE[0])),
        (aten.index_copy.default, (FIRST, ONE[0])),
        (aten.index_fill.int_Scalar, (FIRST, 5)),
    ],
)
def test_a_tensor_without_dimensions_has_one_place(op: Any, rest: tuple[Any, ...]) -> None:
    check_calls(call(op, NUMBER, dim, *rest) for dim in (0, -1))


def test_nothing_is_gathered_from_or_scattered_by_an_empty_index() -> None:
    operand, empty = torch.randn(3, 4), torch.zeros(0, 4, dtype=torch.int64)
    source = torch.randn(0, 4)
    check_calls(
        [
            call(aten.gather.default, operand, 0, empty),
            call(aten.gather.default, operand, 0, torch.zeros(0, dtype=torch.int64)),
            call(aten.scatter.src, operand, 0, empty, source),
            call(aten.scatter_add.default, operand, 0, empty, source),
            call(aten.scatter_reduce.two, operand, 0, empty, source, "mean", include_self=False),
            call(aten.scatter.value, operand, 0, empty, 1.0),
            call(aten.index_add.default, operand, 0, empty[:, 0], source),
            call(aten.index_copy.default, torch.zeros(0, 4), 0, empty[:, 0], source),
        ]
    )


def test_indices_outside_read_the_nearest_element_and_write_nothing() -> None:
    operand, index = torch.arange(3.0), torch.tensor([7, 1, -1])
    assert apply_rule(aten.gather.default, operand, 0, index).tolist() == [2, 1, 0]
    assert apply_rule(aten.index_select.default, operand, 0, index).tolist() == [2, 1, 0]
    assert apply_rule(aten.scatter_add.default, operand, 0, index, torch.ones(3)).tolist() == [0, 2, 2]
    assert apply_rule(aten.index_add.default, operand, 0, index, torch.ones(3)).tolist() == [0, 2, 2]


def test_numbers_to_fill_or_scale_with_may_change_from_step_to_step() -> None:
    operand, index = torch.randn(3, 4), torch.tensor([0, 2])
    numbers, places = torch.arange(12).reshape(3, 4), torch.tensor([[1], [0], [2]])
    check_calls(
        [
            call(aten.index_add.default, operand, 0, index, operand[:2], alpha=0.5),
            call(aten.index_add.default, numbers, 0, index, numbers[:2], alpha=2),
            call(aten.index_fill.int_Scalar, operand, 1, index, 2.5),
            call(aten.scatter.value, operand, 1, places, 2.5),
            call(aten.scatter.value, operand[0], 0, index, 2),
            call(aten.scatter.value, operand[0, 0], 0, index[0], 2.0),
            call(aten.scatter.value_reduce, operand, 1, places, 2.5, reduce="multiply"),
        ],
        changing=True,
    )


@pytest.mark.parametrize("name", ["scatter", "scatter_add"])
def test_nothing_is_scattered_from_a_source_of_any_size(name: str) -> None:
    x, nothing = torch.ones(2, device="xla"), torch.zeros(0, dtype=torch.int64, device="xla")
    assert getattr(x, name)(0, nothing, torch.ones(1, 1, device="xla")).tolist() == [1, 1]
    assert x.scatter_reduce(0, nothing, torch.ones(1, 1, device="xla"), "amax").tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_a_float_to_scale_integers_with_is_cut_off(dtype: torch.dtype) -> None:
    def program(d: str) -> list[torch.Tensor]:
        x, index = torch.tensor([1, 0, 3]).to(dtype).to(d), torch.tensor([1, 1], device=d)
        return [x.index_add(0, index, x[:2], alpha=alpha) for alpha in (2.7, 0.5, 2.0)] + [
            x.clone().index_add_(0, index, x[1:], alpha=1.9)
        ]

    check_same(program)
