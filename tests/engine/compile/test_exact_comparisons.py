"""Comparisons, extremes, orders and conversions of subnormal numbers are exact; arithmetic takes them for zero."""

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.support.ways_to_run import WAYS, made_to_run
from torch_xla._engine.compile.exact_comparisons import compare_exactly

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="other platforms compare as they do")

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Zeros, subnormal and normal numbers, infinities and NaN of both signs."""
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    some = [0.0, least, 2 * least, info.smallest_normal - least, info.smallest_normal, 0.5, 1.0, info.max]
    some.extend((float("inf"), float("nan")))
    return torch.tensor([*some, *(-each for each in some)], dtype=torch.float64).to(dtype)


def same(made: Any, expected: Any) -> bool:
    """Whether two results are equal in every bit, but for the kind of NaN."""
    if isinstance(expected, (tuple, list)):
        return len(made) == len(expected) and all(map(same, made, expected))
    if not isinstance(expected, torch.Tensor):
        return bool(made == expected)
    made = made.cpu()
    if not expected.is_floating_point():
        return made.dtype is expected.dtype and torch.equal(made, expected)
    is_nan = expected.isnan()
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.itemsize]
    return (
        made.dtype is expected.dtype
        and torch.equal(made.isnan(), is_nan)
        and torch.equal(made[~is_nan].view(bits), expected[~is_nan].view(bits))
    )


Function = Callable[[torch.Tensor, torch.Tensor], Any]
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def compared_with(name: str, number: float) -> Function:
    return lambda a, b: getattr(torch, name)(a, number)


PAIRS: dict[str, Function] = {
    **{name: lambda a, b, name=name: getattr(torch, name)(a, b) for name in COMPARISONS},
    **{
        f"{name} of {number}": compared_with(name, number)
        for name, number in product(COMPARISONS, (0.0, -0.0, 1.0, -1.0, 1e-40, -2e-310, float("inf"), float("nan")))
    },
    "clamp": lambda a, b: a.clamp(-1, 1),
    "clamp from 0": lambda a, b: a.clamp(min=0),
    "relu": lambda a, b: a.relu(),
    "threshold": lambda a, b: torch.nn.functional.threshold(a, 0.0, 5.0),
    "sign": lambda a, b: a.sign(),
    "signbit": lambda a, b: a.signbit(),
    "isfinite": lambda a, b: a.isfinite(),
    "isinf": lambda a, b: a.isinf(),
    "isnan": lambda a, b: a.isnan(),
    "nan_to_num": lambda a, b: a.nan_to_num(),
    "abs": lambda a, b: a.abs(),
    "bool": lambda a, b: a.bool(),
    "logical_not": lambda a, b: a.logical_not(),
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "where": lambda a, b: torch.where(a > b, a, b),
    "isin": lambda a, b: torch.isin(a, b[:4]),
    "nextafter": lambda a, b: torch.nextafter(a, b) if a.dtype not in (torch.float16, torch.bfloat16) else a,
    "copysign": torch.copysign,
    "heaviside": torch.heaviside,
    "relu backward": lambda a, b: torch.ops.aten.threshold_backward(b, a, 0.0),
    "clamp backward": lambda a, b: torch.autograd.grad((x := a.detach().requires_grad_()).clamp(0.0, 1.0), x, b)[0],
    "abs backward": lambda a, b: torch.autograd.grad((x := a.detach().requires_grad_()).abs(), x, torch.ones_like(b))[
        0
    ],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PAIRS)
def test_every_pair_is_compared_exactly(name: str, dtype: torch.dtype) -> None:
    each = numbers(dtype)
    a, b = each.repeat_interleave(len(each)), each.repeat(len(each))
    assert same(PAIRS[name](a.to("xla"), b.to("xla")), PAIRS[name](a, b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_the_greater_of_two_keeps_subnormal_numbers(name: str, dtype: torch.dtype) -> None:
    """The sign of a zero beside another zero is not looked at: the CPU is not consistent."""
    each = numbers(dtype)
    a, b = each.repeat_interleave(len(each)), each.repeat(len(each))
    made, expected = (getattr(torch, name)(*(x.to(device) for x in (a, b))).cpu() for device in ("xla", "cpu"))
    torch.testing.assert_close(made, expected, rtol=0, atol=0, equal_nan=True)


WHOLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "sort": lambda x: torch.sort(x, stable=True),
    "sort from the greatest": lambda x: torch.sort(x, stable=True, descending=True),
    "argsort": lambda x: torch.argsort(x, stable=True),
    "unique": lambda x: torch.unique(x[(x == x) & (x != 0)]),
    "nonzero": torch.nonzero,
    "count_nonzero": torch.count_nonzero,
    "any": lambda x: x[1:4].any(),
    "all": lambda x: x[1:4].all(),
    "any along": lambda x: x[:12].view(2, 6)[:, 1:3].any(1),
    "searchsorted": lambda x: torch.searchsorted(x[:9], x[:18]),
    "bucketize": lambda x: torch.bucketize(x[:18], x[:9], right=True),
    "max": lambda x: x[1:4].max(),
    "min": lambda x: x[11:14].min(),
    "max of NaN": torch.max,
    "min of NaN": torch.min,
    "max of few": lambda x: x[[3, 1, 2, 12]].max(),
    "max along": lambda x: x[[3, 1, 12, 11]].view(2, 2).max(1),
    "min along": lambda x: x[[3, 1, 12, 11]].view(2, 2).min(0),
    "amax": lambda x: x[[1, 3, 12, 11]].view(2, 2).amax(1),
    "argmax": lambda x: x[[2, 3, 1, 12]].argmax(),
    "argmin": lambda x: x[[12, 13, 1, 11]].argmin(),
    "cummax": lambda x: x[[11, 1, 3, 2]].cummax(0),
    "cummin": lambda x: x[[3, 1, 12, 13]].cummin(0),
    "topk": lambda x: x[[1, 3, 2, 12, 13]].topk(3),
    "kthvalue": lambda x: x[[1, 3, 2, 12, 13]].kthvalue(2),
    "median": lambda x: x[[1, 3, 2, 12, 13]].median(),
    "mode": lambda x: x[[1, 3, 3, 2, 2, 3]].mode(),
    "max_pool1d": lambda x: torch.nn.functional.max_pool1d(x[None, [11, 1, 3, 2]], 2),
    "max_pool backward": lambda x: torch.autograd.grad(
        torch.nn.functional.max_pool1d((y := x[None, [11, 1, 3, 2]].detach().requires_grad_()), 2).sum(), y
    )[0],
    "scatter amax": lambda x: x[[1, 11]].scatter_reduce(0, x[:2].long(), x[2:4], "amax"),
    "index by a mask": lambda x: x[x.bool()],
    "equal": lambda x: torch.equal(x[1:2], x[2:3]),
    "isclose": lambda x: torch.isclose(x[1:2], x[2:3], 0, 0),
    "bool of a number": lambda x: bool(x[1]),
    "number above another": lambda x: bool(x[2] > x[1]) and bool(x[1] > x[12]),
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "floor of what is computed": lambda x: (x.abs() * -1.0).neg().neg().floor()[[0, 4, 5, 6]],
    "masked_select": lambda x: x.masked_select(x > 0),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WHOLE)
def test_orders_and_reductions_are_exact(name: str, dtype: torch.dtype) -> None:
    each = numbers(dtype)
    assert same(WHOLE[name](each.to("xla")), WHOLE[name](each))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_ways_of_running_compare_exactly(way: str, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, number: float) -> tuple[torch.Tensor, ...]:
        return (
            x > 0,
            x.bool(),
            x.relu(),
            x.amax(),
            x > number,
            x.sort(stable=True)[1],
            x.sign(),
            x.double(),
            x.float(),
            x.floor(),
        )

    each = numbers(dtype)
    each = each[each == each]
    with made_to_run(way, function) as run:
        for number in (0.0, 2e-310, 1e-40, -1e-40):
            assert same(list(run(each.to("xla"), number)), list(function(each, number)))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_are_compared_and_converted_exactly(dtype: torch.dtype) -> None:
    each = numbers(torch.float32 if dtype is torch.complex64 else torch.float64)
    whole = torch.complex(each.repeat_interleave(len(each)), each.repeat(len(each)))
    moved = whole.to("xla")
    assert same(moved == moved.flip(0), whole == whole.flip(0))
    assert same(moved != 0, whole != 0)
    assert same(moved.bool(), whole.bool())
    assert torch.equal(moved.nonzero().cpu(), whole.nonzero())
    for other in (torch.complex64, torch.complex128):
        made, expected = moved.to(other).cpu(), whole.to(other)
        assert same(made.real, expected.real)
        assert same(made.imag, expected.imag)


@settings(deadline=None, max_examples=40)
@given(arrays.arrays(np.int64, 64, elements=st.integers(-(2**63), 2**63 - 1)), st.sampled_from(DTYPES))
def test_any_bits_are_ordered_as_on_the_cpu(bits: np.ndarray, dtype: torch.dtype) -> None:
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    x = torch.from_numpy(bits).view(whole)[:64]
    x = torch.cat([x, x & ((1 << (dtype.itemsize * 4)) - 1)]).view(dtype)  # half of them subnormal
    y = x.roll(1)
    for made, expected in zip(
        *((a > b, a <= b, a == b, a.sort(stable=True)[1]) for a, b in ((x.to("xla"), y.to("xla")), (x, y))), strict=True
    ):
        assert torch.equal(made.cpu(), expected)


def test_arithmetic_takes_subnormal_numbers_for_zero() -> None:
    """Check the differences that docs/determinism.md names."""
    x = torch.tensor([1e-40], device="xla")
    assert (x * 2).item() == 0
    assert not ((x * 2) > 0).item()
    assert (x > 0).item()
    assert bool(x) is x.bool().item() is True


FUSED: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": lambda x: jnp.where(x < 0, 0, x) * 2,
    "gradient of relu": lambda x: jnp.where(x > 0, jnp.exp(x), 0),
    "greater of two": lambda x: jnp.maximum(x, x.T) + 1,
    "number of nonzero": lambda x: jnp.sum(x != 0),
    "float64": lambda x: jnp.sin(x.astype(np.float64)).astype(np.float32),
}


@pytest.mark.parametrize("name", FUSED)
def test_operations_on_bits_are_fused(name: str) -> None:
    """A program passes over memory as often as it does with plain comparisons."""
    texts = []
    for is_exact in (False, True):
        with jax.enable_x64(True):
            # A function of its own, because JAX keeps what it compiled of one.
            lowered = jax.jit(lambda x: FUSED[name](x)).lower(jax.ShapeDtypeStruct((64, 64), np.float32))
            if is_exact:
                compare_exactly(lowered.compiler_ir("stablehlo"))
            texts.append(lowered.compile().as_text())
    plain, exact = (_passes(text[text.index("ENTRY") :]) for text in texts)
    assert texts[0] != texts[1]
    assert len(exact) <= len(plain), exact


def _passes(entry: str) -> list[str]:
    """The operations of a compiled program that pass over memory."""
    return [line for line in entry.splitlines() if re.search(r" = .* (fusion|reduce|call|sort|convert)\(", line)]
