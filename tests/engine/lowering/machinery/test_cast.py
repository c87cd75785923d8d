"""Conversions between dtypes agree with PyTorch on the CPU."""

import math
import warnings

import pytest
import torch

import torch_xla
from tests.support import boundaries
from tests.support.rule_table import Call, call, check_calls
from tests.support.rules import apply_rule
from tests.support.values import INF, NAN, edge_values
from tests.support.ways_to_run import WAYS, made_to_run

aten = torch.ops.aten

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
]
FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]


def values(dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.tensor([0.0, -0.0, 1.5, -1.5, 2.9, -2.9, 100, -100, 200, -1, 255, 300, -129, 1e4], dtype=dtype)
    return edge_values(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_every_dtype_becomes_every_other(dtype: torch.dtype) -> None:
    check_calls(call(aten._to_copy.default, values(dtype), dtype=other) for other in DTYPES)


def float8_calls(dtype: torch.dtype) -> list[Call]:
    return [call(aten._to_copy.default, values(dtype), dtype=other) for other in FLOAT8[:2]]


SATURATES = not bool(torch.tensor(1e10).to(torch.float8_e4m3fn).float().isnan())
saturating = pytest.mark.skipif(not SATURATES, reason="PyTorch 2.11 gives NaN; ours saturates, as newer ones do")


@saturating
@pytest.mark.parametrize("dtype", [d for d in DTYPES if not d.is_complex])
def test_every_real_dtype_becomes_float8(dtype: torch.dtype) -> None:
    for made in float8_calls(dtype):
        got, expected = apply_rule(made.op, *made.args, **made.kwargs), made.op(*made.args, **made.kwargs)
        torch.testing.assert_close(got.float(), expected.float(), rtol=0, atol=0)


@saturating
@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_float8_saturates_or_overflows_as_pytorch_does(dtype: torch.dtype, source: torch.dtype) -> None:
    operand = torch.tensor([448.0, 470, 480, 1e10, NAN, INF, -INF, -1e20, 1e-9, 57344, 2**-9, -0.0, 0.0, 1.3, -240.0])
    operand = operand.to(source)
    got = apply_rule(aten._to_copy.default, operand, dtype=dtype).float()
    torch.testing.assert_close(got, operand.to(dtype).float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(
        apply_rule(aten._to_copy.default, operand.to(dtype), dtype=source), operand.to(dtype).to(source), equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("source", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_float_that_fits_no_integer_becomes_the_least(source: torch.dtype, dtype: torch.dtype) -> None:
    least = torch.iinfo(dtype).min
    operand = torch.tensor([NAN, INF, -INF, 1e20, -float(least), -1e20, float(least), -least / 4, 7.9], dtype=source)
    fits = [operand[i].isfinite().item() for i in (-3, -2, -1)]
    got = apply_rule(aten._to_copy.default, operand, dtype=dtype).tolist()
    expected = [(least, -least // 4, 7)[i] if fits[i] else least for i in range(3)]
    assert got == [least] * 6 + expected


@pytest.mark.parametrize("source", FLOAT8[:2])
def test_narrow_floats_become_integers(source: torch.dtype) -> None:
    operand = torch.tensor([0.0, 1.5, -2.5, 240, NAN, INF]).to(source)
    for dtype in (torch.int8, torch.int32, torch.int64):
        expected = operand.float().to(dtype)
        assert apply_rule(aten._to_copy.default, operand, dtype=dtype)[:4].tolist() == expected[:4].tolist()


def test_a_real_part_is_taken_in_silence() -> None:
    operand = torch.tensor([1 + 2j, 3j])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert apply_rule(aten._to_copy.default, operand, dtype=torch.float32).tolist() == [1, 0]
        assert apply_rule(aten._to_copy.default, operand, dtype=torch.bool).tolist() == [True, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_truth_value_as_a_number_times_nan_is_nan(dtype: torch.dtype) -> None:
    def program(device: str) -> list[torch.Tensor]:
        x = torch.tensor([INF, NAN, 1, -3], dtype=dtype, device=device)
        truths = x > 5
        return [x * truths.to(dtype), x * truths, x.clone().mul_(truths), x * torch.gt(x, 5, out=torch.empty_like(x))]

    for ours, theirs in zip(program("xla"), program("cpu"), strict=True):
        assert torch.equal(ours.cpu().isnan(), theirs.isnan())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int32])
def test_powers_of_two_are_rounded_to_as_on_the_cpu(dtype: torch.dtype) -> None:
    edges = [2.0**power * part for power in (-149, -140, -128, -127, -126, -14, 0, 1, 15, 30, 127)
             for part in (1, 1.001, 1.25, 1.5, 1.5001, 1.75, 1.999)]  # fmt: skip
    values = [0.0, 1e-300, *edges, 1e300, -1.0, -0.0, math.inf, math.nan]
    if not dtype.is_floating_point:
        values = [float(each) for each in (0, 1, 2, 3, 5, 6, 7, 1000, 2**30)]
    operand = torch.tensor(values, dtype=torch.float64).to(dtype)
    made = operand.to("xla").to(torch.float8_e8m0fnu).cpu().view(torch.uint8)
    assert made.tolist() == operand.to(torch.float8_e8m0fnu).view(torch.uint8).tolist()


def _wrong(made: torch.Tensor, source: torch.Tensor) -> list[str]:
    """The first few numbers whose conversion differs from the CPU's."""
    expected = source.to(made.dtype)
    differ = boundaries.differences(made, expected) & boundaries.is_defined(source, made.dtype)
    return [f"{source[i].item()!r}: {made[i].item()!r}, not {expected[i].item()!r}" for i in differ.nonzero()[:4, 0]]


@pytest.mark.parametrize("source", boundaries.ALL, ids=str)
def test_every_dtype_becomes_every_other_as_on_the_cpu(source: torch.dtype) -> None:
    numbers = boundaries.boundaries(source)
    moved = numbers.to("xla")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the imaginary part is dropped
        made = {target: moved.to(target) for target in boundaries.ALL}
        torch_xla.sync()
        wrong = {target: _wrong(result.cpu(), numbers) for target, result in made.items()}
    assert not {target: found for target, found in wrong.items() if found}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_running_converts_alike(way: str) -> None:
    targets = [torch.float32, torch.bfloat16, torch.float16, torch.float64, *boundaries.FLOAT8, torch.int32, torch.bool]

    def converted(numbers: torch.Tensor) -> list[torch.Tensor]:
        return [numbers.to(target) for target in targets]

    for source in (torch.float64, torch.float32):
        numbers = boundaries.boundaries(source)
        with made_to_run(way, converted) as run:
            for _ in range(2):
                made = run(numbers.to("xla"))
        wrong = {each.dtype: _wrong(each.cpu(), numbers) for each in made}
        assert not {target: found for target, found in wrong.items() if found}


@pytest.mark.parametrize("number", [5e-324, 1e-40, 2.0**-127, 2.0**-149 * 1.5, -0.0, 65520.0, 1e39])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_a_number_is_filled_in_as_it_is_converted(number: float, dtype: torch.dtype) -> None:
    expected = torch.tensor([number], dtype=torch.float64).to(dtype)
    scalar = torch.tensor(number, dtype=torch.float64, device="xla")
    for made in (scalar.to(dtype)[None], torch.empty(1, dtype=dtype, device="xla").copy_(scalar)):
        assert not boundaries.differences(made.cpu(), expected).any()


# Rounded to float32 first, each of them is a tie between two numbers of 16 bits.
_ROUNDED_TWICE = [8.940696716308592e-08, 6.10053539276123e-05, 1 + 2**-11 + 2**-40, 1 + 2**-8 + 2**-40]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_64_bits_become_16_bits_by_way_of_32(dtype: torch.dtype) -> None:
    def made(device: str, value: float) -> list[torch.Tensor]:
        wide = torch.full((2,), value, dtype=torch.float64, device=device)
        half = torch.ones(2, dtype=dtype, device=device)
        return [
            wide.to(dtype), half.clone().copy_(wide), half.clone().fill_(value), torch.full_like(half, value),
            half.masked_fill(half > 0, value), half.clamp(value, value), half * wide[0], half * value, half.add(value),
            wide.sum(dtype=dtype), torch.where(half > 0, value, half), wide.to(torch.complex128).real.to(dtype),
        ]  # fmt: skip

    for value in _ROUNDED_TWICE:
        for place, (ours, theirs) in enumerate(zip(made("xla", value), made("cpu", value), strict=True)):
            assert torch.equal(ours.cpu(), theirs), (place, value)
