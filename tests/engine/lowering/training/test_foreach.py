"""Operations on lists, compared with PyTorch on the CPU."""

from typing import Any

import jax
import pytest
import torch

from tests.support.rules import apply_rule, check_rule
from torch_xla._engine.lowering.machinery.registry import rule_of
from torch_xla._engine.lowering.training import foreach

aten = torch.ops.aten


def mixed(shift: float = 0.0) -> list[torch.Tensor]:
    """Values in (0, 1) of several shapes and dtypes, each promoted on its own."""
    generator = torch.Generator().manual_seed(int(shift * 10) + 1)
    floats = [
        torch.rand(shape, generator=generator, dtype=torch.float64).mul(0.8).add(0.1)
        for shape in ((2, 3), (), (0, 2), (4,))
    ]
    dtypes = (torch.float32, torch.float64, torch.float32, torch.bfloat16)
    return [t.to(dtype) for t, dtype in zip(floats, dtypes, strict=True)]


def integers(start: int = 1) -> list[torch.Tensor]:
    return [
        torch.arange(start, start + 6).reshape(2, 3),
        torch.tensor(start + 2, dtype=torch.int32),
        torch.ones(3) * 2.5,
    ]


@pytest.mark.parametrize("name", [*foreach.UNARY.split(), "max"])
def test_functions_of_one_list(name: str) -> None:
    op = getattr(aten, f"_foreach_{name}").default
    operands = [t for t in mixed() if t.numel()] if name == "max" else mixed()
    check_rule(op, operands)
    if name not in ("frac", "max", "lgamma"):
        check_rule(op, integers())


BINARY = [op for op in foreach.ROWS if op._overloadname == "List" and "lerp" not in str(op)]


@pytest.mark.parametrize("op", BINARY, ids=str)
def test_two_lists_are_promoted_pair_by_pair(op: Any) -> None:
    check_rule(op, mixed(), mixed(1.0))
    check_rule(op, integers(), [torch.rand(2, 3), torch.tensor(2), torch.tensor(1.5, dtype=torch.float64)])


SCALARS = [op for op in foreach.ROWS if op._overloadname in ("Scalar", "ScalarList") and "lerp" not in str(op)]


@pytest.mark.parametrize("op", SCALARS, ids=str)
def test_numbers_promote_only_by_their_kind(op: Any) -> None:
    for operands in (mixed(), integers()):
        for number in (2, 2.5):
            check_rule(op, operands, [number] * len(operands) if op._overloadname == "ScalarList" else number)
    if op._overloadname == "ScalarList":
        check_rule(op, mixed(), [1, 0.5, 2, 3.0])


def test_sums_scale_the_second_list() -> None:
    for op in (aten._foreach_add.List, aten._foreach_sub.List):
        check_rule(op, mixed(), mixed(1.0), alpha=0.25)
    check_rule(aten._foreach_add.Tensor, mixed(), torch.tensor(1.5), alpha=2)


def test_one_tensor_stands_for_a_list() -> None:
    for op in (aten._foreach_add.Tensor, aten._foreach_mul.Tensor, aten._foreach_div.Tensor):
        check_rule(op, mixed(), torch.tensor(1.5))
        check_rule(op, integers(), torch.tensor(2))


def test_a_number_to_the_powers_of_a_list() -> None:
    check_rule(aten._foreach_pow.ScalarAndTensor, 2, mixed())
    check_rule(aten._foreach_pow.ScalarAndTensor, 2.5, integers())


def test_products_and_quotients_are_added_with_a_factor() -> None:
    for packet in (aten._foreach_addcmul, aten._foreach_addcdiv):
        lists = mixed(), mixed(1.0), mixed(2.0)
        check_rule(packet.Scalar, *lists)
        check_rule(packet.Scalar, *lists, 0.5)
        check_rule(packet.ScalarList, *lists, [1, 0.5, 2.0, -1.5])
        check_rule(packet.Tensor, *lists, torch.tensor([1, 0.5, 2.0, -1.5]))


def test_interpolation() -> None:
    starts, ends = [t.float() for t in mixed()], [t.float() for t in mixed(1.0)]
    check_rule(aten._foreach_lerp.List, starts, ends, [t.float() for t in mixed(2.0)])
    check_rule(aten._foreach_lerp.Scalar, starts, ends, 0.75)
    check_rule(aten._foreach_lerp.ScalarList, starts, ends, [0.0, 1.0, 0.25, 0.75])


def test_copies_and_zeros_keep_the_dtypes_of_the_target() -> None:
    check_rule(aten._foreach_copy.default, mixed(), [t.double() for t in mixed(1.0)])
    check_rule(aten._foreach_copy.default, [torch.zeros(2, 3, dtype=torch.int32)], [torch.tensor(2.75)])
    check_rule(aten._foreach_zero.default, [*mixed(), *integers()])
    if hasattr(aten, "_foreach_clone"):
        check_rule(aten._foreach_clone.default, mixed())
    if hasattr(aten, "_foreach_mm"):
        check_rule(aten._foreach_mm.default, [torch.rand(2, 3), torch.rand(1, 2)], [torch.rand(3, 2), torch.rand(2, 4)])


@pytest.mark.parametrize("order", [2, 1, 0, float("inf")])
def test_norms_of_every_tensor(order: float) -> None:
    operands = [t for t in mixed() if t.numel()]
    check_rule(aten._foreach_norm.Scalar, operands, order)
    check_rule(aten._foreach_norm.Scalar, operands[:1], order, dtype=torch.float64)


def test_sums_of_powers_of_every_tensor() -> None:
    if hasattr(aten, "_foreach_powsum"):
        check_rule(aten._foreach_powsum.Scalar, mixed(), 3)


def test_numbers_that_change_between_steps_promote_like_python_numbers() -> None:
    rule = rule_of(aten._foreach_mul.Scalar)
    assert rule is not None
    with jax.enable_x64(True):
        arrays = [jax.numpy.ones(2, dtype) for dtype in ("float32", "bfloat16", "int32", "float64")]
        results = jax.jit(lambda number: rule.lower(arrays, number))(2.5)
    assert [str(array.dtype) for array in results] == ["float32", "float32", "float32", "float64"]


def test_unscaling_finds_values_that_are_not_finite() -> None:
    op = aten._amp_foreach_non_finite_check_and_unscale.default
    gradients = [torch.tensor([1.0, 2.0]), torch.tensor(3.0), torch.ones(2, dtype=torch.float16), torch.ones(0)]
    for found in (torch.tensor(0.0), torch.tensor([0.0]), torch.tensor(1.0)):
        check_rule(op, gradients, found, torch.tensor(0.25))
        for bad in (float("nan"), float("inf"), -float("inf")):
            check_rule(op, [*gradients, torch.tensor([1.0, bad])], found, torch.tensor(1.0))


@pytest.mark.parametrize("scale", [4.0, 3e38])
@pytest.mark.parametrize("tracker", [0, 1, 5])
def test_the_scale_grows_after_an_interval_and_shrinks_after_an_overflow(scale: float, tracker: int) -> None:
    for found in (0.0, 1.0):
        counted = torch.tensor(tracker, dtype=torch.int32)
        operands = torch.tensor(scale), counted, torch.tensor(found)
        check_rule(aten._amp_update_scale.default, *operands, 2.0, 0.5, 2)
    assert apply_rule(aten._amp_update_scale.default, *operands, 2.0, 0.5, 2)[1].dtype is torch.int32


def single_elements(*values: float, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.tensor(value, dtype=dtype) for value in values]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("op", [*BINARY, *SCALARS], ids=str)
def test_single_elements_in_one_vector_are_computed_as_each_is(op: Any, dtype: torch.dtype) -> None:
    operands = single_elements(1, 2, 3, dtype=dtype)
    if op in BINARY:
        check_rule(op, operands, single_elements(0.5, 4, 2))
        return
    for number in (2, 2.5):
        check_rule(op, operands, [number] * 3 if op._overloadname == "ScalarList" else number)


def test_a_list_of_single_elements_is_one_operation() -> None:
    rule = rule_of(aten._foreach_add.Scalar)
    assert rule is not None
    counts = [jax.numpy.float32(n) for n in range(50)]
    program = jax.make_jaxpr(lambda *steps: rule.lower(list(steps), 1))(*counts)
    assert str(program).count(" add ") == 1
