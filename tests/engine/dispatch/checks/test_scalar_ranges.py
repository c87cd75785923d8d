"""Numbers that a dtype does not hold: refused in every call where the CPU refuses them, and only there."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from tests.support.twins import outcome
from tests.support.ways_to_run import WAYS, made_to_run

_HASH = 0x9E3779B97F4A7C15

Call = Callable[[torch.Tensor, Any], Any]

CALLS: dict[str, Call] = {
    "fill_": lambda x, v: x.fill_(v),
    "foreach": lambda x, v: torch._foreach_addcmul([x], [x], [x], v)[0],
    "foreach, a number for each": lambda x, v: torch._foreach_addcmul([x, x], [x, x], [x, x], [0.5, v])[1],
    "full": lambda x, v: torch.full((2,), v, dtype=x.dtype, device=x.device),
    "full_like": lambda x, v: torch.full_like(x, v),
    "add": lambda x, v: x + v,
    "add, alpha": lambda x, v: x.add(x, alpha=v) if isinstance(v, int) else x,
    "add, any alpha": lambda x, v: x.add(x, alpha=v) if x.is_floating_point() else x,
    "addcmul_": lambda x, v: x.addcmul_(x, x, value=v),
    "clamp": lambda x, v: x.clamp(0, v),
    "clamp_min_": lambda x, v: x.clamp_min_(v),
    "comparison": lambda x, v: x > v,
    "hardtanh": lambda x, v: torch.nn.functional.hardtanh(x, -1, v) if v == v.real and v >= -1 else x,
    "index_fill": lambda x, v: x.index_fill(0, torch.tensor([0], device=x.device), v),
    "lerp": lambda x, v: torch.lerp(x, x, v),
    "linspace": lambda x, v: torch.linspace(0, v, 3, dtype=x.dtype, device=x.device),
    "logit": lambda x, v: torch.logit(x, v) if isinstance(v, float) else x,
    "logit_backward": lambda x, v: torch.ops.aten.logit_backward(x, x, v) if isinstance(v, float) else x,
    "masked_fill": lambda x, v: x.masked_fill(x == 0, v),
    # C++ leaves open what a float beyond int64 becomes.
    "pad": lambda x, v: torch.nn.functional.pad(x, (1, 1), value=v) if v != 1 << 63 and v != _HASH else x,
    "pow": lambda x, v: x**v,
    "remainder": lambda x, v: x % v,
    "rsub": lambda x, v: v - x,
    "scatter": lambda x, v: x.scatter(0, torch.tensor([0], device=x.device), v),
    "setitem": lambda x, v: x.__setitem__(0, v),
    "threshold": lambda x, v: torch.threshold(x, v, 1),
    "threshold, value": lambda x, v: torch.threshold(x, 1, v),
    "where": lambda x, v: torch.where(x == 0, x, v),
}

NUMBERS: dict[torch.dtype, list[Any]] = {
    torch.uint8: [1, -1, 1 << 63, 300, -300, 1, 2.5, -1.0, 300.0, float("nan")],
    torch.int8: [1, -1, 200, 200.0, float("inf")],
    torch.int32: [1, 1 << 40, 1 << 63, 1e12],
    torch.int64: [1, 1.5, 1e30, 1 << 63, _HASH],
    torch.float16: [1, 70000, 1 << 63, 1.5, -1e6, float("inf"), float("nan")],
    torch.bfloat16: [1, 1 << 62, 3.38e38, 3.4e38, -1e39, 1.5, float("-inf"), float("nan"), 1j, 1e39 + 1j],
    torch.float32: [1, 1 << 62, 1 << 63, 3.4e38, 1e39, -1e39, 1.5, float("-inf"), float("nan"), 1j, 1e39 + 1j],
    torch.float64: [1, 1e39, 1 << 63, float("inf"), 1j],
    torch.complex64: [1, 1.5, 1e39, 1j, 1e39 + 1j],
    torch.complex32: [1, 70000, 1e39, 1j, 7e4 + 1j],
    torch.float8_e4m3fn: [1, 500, 448.0, 465.0, float("inf"), float("nan"), 1j, 2 + 0j],
    torch.float8_e5m2: [1, 60000, 1e5, float("inf"), float("nan"), 2 + 0j],
    torch.float8_e4m3fnuz: [1, 250, -250.0, float("-inf"), 2 + 0j],
    torch.float8_e5m2fnuz: [1, 60000, float("inf"), 2 + 0j],
    torch.float8_e8m0fnu: [1, 0.0, -1.5, 1e-40, 2.0**-127, 1e39, float("inf"), 2 + 0j],
}


def cases() -> list[Any]:
    """Every call with every second dtype, and every dtype with every second call; the others are exhaustive."""
    return [
        pytest.param(dtype, name, marks=[pytest.mark.exhaustive] * ((row + column) % 2))
        for row, dtype in enumerate(NUMBERS)
        for column, name in enumerate(CALLS)
    ]


@pytest.mark.parametrize(("dtype", "name"), cases(), ids=str)
def test_numbers_that_do_not_fit_are_refused_as_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    for number in NUMBERS[dtype]:
        results = {}

        def program(d: str, number: Any = number, results: Any = results) -> None:
            x = torch.tensor([0, 3], device=d).to(dtype)
            made = CALLS[name](x, number)
            results[d] = x if made is None else made

        theirs, ours = outcome(program, "cpu"), outcome(program, "xla")
        if isinstance(theirs, NotImplementedError):
            continue  # the CPU has no such kernel
        if theirs is None and results["cpu"].dtype is getattr(torch, "bcomplex32", None):
            continue  # a dtype of PyTorch 2.15 that XLA has not
        assert type(ours) is type(theirs) and str(ours) == str(theirs), number
        # Complex numbers that are not finite every library multiplies in its own way.
        if theirs is None and not (results["cpu"].is_complex() and not results["cpu"].isfinite().all()):
            torch.testing.assert_close(results["xla"].cpu(), results["cpu"], equal_nan=True)


def test_a_place_is_held_against_the_dimension_each_time() -> None:
    for device in ("cpu", "xla"):
        gradient = torch.ones(3, device=device)
        for index in (1, -4):
            found = torch.ops.aten.select_backward(gradient, [4, 3], 0, index)
            assert found.cpu().sum(1).nonzero().item() == index % 4
        with pytest.raises(IndexError):
            torch.ops.aten.select_backward(gradient, [4, 3], 0, 4)


@pytest.mark.parametrize("size", [(0,), (0, 3)], ids=str)
@pytest.mark.parametrize(
    "norm",
    [
        lambda x, p: torch.linalg.vector_norm(x, p),
        lambda x, p: torch.linalg.vector_norm(x, p, x.ndim - 1),
        lambda x, p: torch.norm(x, p, dim=0),
        lambda x, p: x.norm(p, 0, True, dtype=torch.float64),
        lambda x, p: torch._foreach_norm([torch.ones_like(x[:, None]), x], p)[1],
    ],
    ids=["all", "last", "norm", "norm, dtype", "list"],
)
def test_a_norm_of_no_elements_has_an_order_that_the_cpu_takes(norm: Call, size: tuple[int, ...]) -> None:
    for order in (2, 0, math.inf, 1.5, -1, -2.5, -math.inf, 0.0, 3):
        program = partial(lambda order, device: norm(torch.ones(size, device=device), order), order)
        theirs, ours = outcome(program, "cpu"), outcome(program, "xla")
        assert (type(ours), str(ours)) == (type(theirs), str(theirs)), order


def test_computed_divisors_that_are_not_known_are_not_taken_for_zeros() -> None:
    for call in (lambda x: 300 % x, lambda x: torch.remainder(300, x), lambda x: 300 // x, lambda x: -300 % x):
        by_device = [call(torch.tensor([7, 200, 250], dtype=torch.uint8, device=d) * 1) for d in ("cpu", "xla")]
        assert by_device[0].tolist() == by_device[1].tolist()


@pytest.mark.parametrize("way", WAYS)
def test_an_integer_of_64_bits_without_sign_is_a_number(way: str) -> None:
    calls = [lambda x: x * _HASH, lambda x: x + (1 << 63), lambda x: x.float() * (1 << 63), lambda x: x > _HASH,
             lambda x: x.clamp(max=1 << 62) ^ _HASH, lambda x: x.double().fill_(_HASH)]  # fmt: skip
    x = torch.tensor([1, -2, 1 << 40])
    for call in calls:
        with made_to_run(way, call) as run:
            for _ in range(4):
                assert run(x.to("xla")).tolist() == call(x.clone()).tolist()
        assert (x.to("xla") + 1).tolist() == (x + 1).tolist()  # the step after it runs


# Numbers that an operator refuses in any dtype: a valid one first, so that the call has a plan.
REFUSED: dict[str, tuple[Call, tuple[float, ...]]] = {
    "cdist": (lambda x, v: torch.cdist(x, x, v), (2.0, 0.0, -1.0, math.inf)),
    "celu": (torch.celu, (1.0, 0.0, -1.0)),
    "histc": (lambda x, v: torch.histc(x, 4, 0.0, v), (1.0, -1.0, 2.0, 0.0)),
    "huber_loss": (lambda x, v: torch.nn.functional.huber_loss(x, x + 1, delta=v), (1.0, 0.0, 2.0, -1.0)),
    "renorm": (lambda x, v: torch.renorm(x, v, 0, 1.0), (2.0, 0.0, 1.0, -1.0)),
    "renorm, maxnorm": (lambda x, v: torch.renorm(x, 2.0, 0, v), (2.0, 0.0, -1.0)),
    "softshrink": (torch.nn.functional.softshrink, (0.5, 0.0, -1.0, math.inf)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_that_an_operator_refuses_are_refused_in_every_call(name: str) -> None:
    call, numbers = REFUSED[name]
    x = torch.tensor([[0.25, -2.0], [0.5, 3.0]])
    for number in (*numbers, *numbers):
        theirs, ours = (outcome(lambda device, v=number: call(x.to(device), v), device) for device in ("cpu", "xla"))
        assert type(ours) is type(theirs) and str(ours) == str(theirs), number
