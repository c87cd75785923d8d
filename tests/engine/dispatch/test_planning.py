"""From a call to its plan: found again for equal calls, told apart where anything differs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import torch_xla
from tests.support.twins import check_same
from torch_xla._engine.backend.register import _NAMED_AFTER_RESULTS
from torch_xla._engine.dispatch.forms import Form, operator_of
from torch_xla._engine.private import torch as private
from torch_xla._engine.record.device import device_at


def plans() -> list[object]:
    code = device_at(0).tape.code
    return [entry for entry in code if type(entry).__name__ == "Plan"]


def test_equal_calls_share_a_plan() -> None:
    x, y = torch.ones(2, 3, device="xla"), torch.zeros(2, 3, device="xla")
    kept = [x + 1, y + 1, x + 5]
    assert len({id(plan) for plan in plans()[-3:]}) == 1
    assert len(kept) == 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x: x + 1, lambda x: x + 1.0),
        (lambda x: x + True, lambda x: x + 1),
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: x.sum(0, keepdim=True), lambda x: x.sum(0, keepdim=False)),
        (lambda x: x + x, lambda x: x + x.clone(memory_format=torch.contiguous_format).t()),
        (lambda x: x.to(torch.float64), lambda x: x.to(torch.float16)),
    ],
)
def test_calls_that_differ_have_plans_of_their_own(first: object, second: object) -> None:
    x = torch.ones(3, 3, device="xla")
    kept = [first(x)]  # type: ignore[operator]
    one = plans()[-1]
    kept.append(second(x))  # type: ignore[operator]
    assert plans()[-1] is not one
    assert len(kept) == 2


def test_the_default_dtype_is_part_of_what_a_call_means() -> None:
    def made() -> list[torch.dtype]:
        x = torch.ones(2, dtype=torch.int64, device="xla")
        return [
            (x / 2).dtype,
            (x * 1.5).dtype,
            torch.ones(2, device="xla").dtype,
            torch.full((2,), 1.5, device="xla").dtype,
            torch.arange(0, 1, 0.5, device="xla").dtype,
            torch.tensor(1.5, device="xla").dtype,
            torch.empty(2, device="xla").dtype,
            x.float().to(torch.float64).mean().dtype,
        ]

    single = made()
    assert single == [torch.float32] * 7 + [torch.float64]
    torch.set_default_dtype(torch.float64)
    try:
        assert made() == [torch.float64] * 8
        assert (torch.ones(2, dtype=torch.int64, device="xla") / 3)[0].item() == 1 / 3
    finally:
        torch.set_default_dtype(torch.float32)
    assert made() == single


def test_every_operator_with_an_out_is_known_by_its_name() -> None:
    for name in private.all_operator_names():
        overload = name.partition(".")[2]
        if not name.startswith("aten::") or private.has_kernel(name, "CompositeImplicitAutograd"):
            continue
        schema = private.schema_of(*name.partition(".")[::2])
        if any(argument.is_out for argument in schema.arguments):
            known = "out" in overload.lower() or overload in _NAMED_AFTER_RESULTS
            assert known, f"{name} has an `out=` that its name does not tell"


@pytest.mark.parametrize(
    ("name", "form", "functional"),
    [
        ("aten::add.Tensor", Form.FUNCTIONAL, "aten::add.Tensor"),
        ("aten::add_.Tensor", Form.INPLACE, "aten::add.Tensor"),
        ("aten::add.out", Form.OUT, "aten::add.Tensor"),
        ("aten::max.dim_max", Form.OUT, "aten::max.dim"),
        ("aten::sort.values_stable", Form.OUT, "aten::sort.stable"),
        ("aten::_foreach_add_.Scalar", Form.INPLACE, "aten::_foreach_add.Scalar"),
        ("aten::bernoulli_.float", Form.INPLACE, "aten::bernoulli.p"),
        ("aten::normal_", Form.INPLACE, "aten::normal_functional"),
        ("aten::view", Form.VIEW, None),
        ("aten::as_strided_", Form.INPLACE, None),
    ],
)
def test_the_form_and_the_functional_sibling_are_read_off_the_schema(
    name: str, form: Form, functional: str | None
) -> None:
    operator = operator_of(name)
    assert operator.form is form
    if functional is not None:
        assert operator.functional is not None and operator.functional.name() == functional


def test_arguments_that_only_the_written_form_may_leave_out_are_filled_in() -> None:
    assert operator_of("aten::bernoulli_.float").defaults == ((1, "p", 0.5),)
    assert operator_of("aten::add_.Tensor").defaults == ()


@pytest.mark.parametrize("norm", [torch.nn.LayerNorm, torch.nn.BatchNorm1d], ids=lambda norm: norm.__name__)
def test_gradients_of_narrow_norms_take_the_statistics_kept_in_float32(norm: type[torch.nn.Module]) -> None:
    layer = norm(4).to("xla", torch.bfloat16)
    x = torch.arange(12.0, device="xla").reshape(3, 4).square().to(torch.bfloat16).requires_grad_()
    first = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()], create_graph=True)
    second = torch.autograd.grad(sum(g.float().square().sum() for g in first), x)
    assert {g.dtype for g in (*first, *second)} == {torch.bfloat16}


def test_what_one_number_leaves_as_it_is_another_one_changes() -> None:
    x, y = torch.tensor([4.0, 9.0], device="xla"), torch.tensor([4.0, 9.0], device="xla")
    assert x.pow_(1.0).tolist() == [4, 9]
    assert y.pow_(0.5).tolist() == [2, 3]


MIXED: list[Callable[..., torch.Tensor]] = [
    torch.copysign, torch.floor_divide, torch.logaddexp, torch.logical_and, torch.xlogy, torch.special.xlog1py,
    torch.add, torch.atan2, partial(torch.div, rounding_mode="floor"),
]  # fmt: skip
BESIDE = (torch.ones(3, 2), torch.tensor(2), torch.tensor([2.0, 3.0]), torch.ones(3, 1, dtype=torch.float64))


@pytest.mark.parametrize("function", MIXED, ids=lambda function: getattr(function, "__name__", "div"))
@pytest.mark.parametrize("beside", BESIDE, ids=lambda tensor: f"{tuple(tensor.shape)}")
def test_results_lie_in_memory_as_on_the_cpu(function: Callable[..., torch.Tensor], beside: torch.Tensor) -> None:
    turned = torch.ones(2, 3).mT
    for pair in ((turned, beside), (beside.to(turned.dtype), turned)):
        ours, theirs = (function(*[x.to(device) for x in pair]) for device in ("xla", "cpu"))
        assert ours.stride() == theirs.stride() and ours.dtype is theirs.dtype


def test_some_results_are_contiguous_as_on_the_cpu() -> None:
    turned = torch.ones(2, 3, device="xla").mT
    assert torch.isin(turned, torch.ones(2, device="xla")).is_contiguous()
    assert (2**turned).is_contiguous()
    assert torch.nn.functional.logsigmoid(turned).is_contiguous()
    assert torch.floor_divide(turned, 2).stride() == (1, 3)
    assert torch.nn.functional.batch_norm(turned, None, None, training=True).is_contiguous()
    statistics = torch.ones(2, device="xla")
    assert torch.nn.functional.batch_norm(turned, statistics, statistics).is_contiguous()


def test_complex_numbers_that_are_none_are_replaced_in_place() -> None:
    numbers = torch.tensor([complex("nan"), 1 + 2j], device="xla").nan_to_num_(3.0)
    assert numbers.tolist() == [3 + 0j, 1 + 2j]


@pytest.mark.parametrize("exponent", [True, False, 2, [True, False], [2, 3]], ids=str)
def test_powers_of_truth_values_have_the_dtype_they_have_on_the_cpu(exponent: bool | int | list[int]) -> None:
    def program(d: str) -> Any:
        base = torch.tensor([True, False], device=d)
        if isinstance(exponent, list):
            return torch._foreach_pow([base, base], exponent)
        return [torch.pow(base, exponent), *torch._foreach_pow([base, ~base], exponent)]

    check_same(program)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_a_dtype_that_no_device_has_is_refused_where_it_would_arise() -> None:
    narrow = torch.ones(2, dtype=torch.float16, device="xla")
    with pytest.raises(TypeError, match="complex32 has no counterpart"):
        torch.complex(narrow, narrow)
    torch_xla.sync()


@pytest.mark.parametrize("function", [torch.copysign, torch.floor_divide])
def test_a_number_may_stand_where_a_form_that_writes_takes_a_tensor(function: Callable[..., torch.Tensor]) -> None:
    def program(d: str) -> Any:
        x = torch.tensor([1.0, -2.0, 3.0], device=d)
        return function(x, -2.0, out=torch.empty(3, device=d)), getattr(x.clone(), function.__name__ + "_")(-2.0)

    check_same(program)
