"""Floats of eight bits have the bits that PyTorch gives them on the CPU, whatever makes them."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torch_xla
from torch_xla.experimental import eager_mode_context

DTYPES = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]


def some(dtype: torch.dtype, device: str) -> Tensor:
    return torch.tensor([1.0, 4.0, 0.5], device=device).to(dtype)


# What fills, pads and writes of other dtypes leave.
MADE: dict[str, Callable[[torch.dtype, str], Tensor]] = {
    "zeros": lambda dtype, device: torch.zeros(3, dtype=dtype, device=device),
    "zero_": lambda dtype, device: some(dtype, device).zero_(),
    "fill_": lambda dtype, device: torch.empty(3, dtype=dtype, device=device).fill_(0),
    "new_zeros": lambda dtype, device: some(dtype, device).new_zeros(2),
    "zeros_like": lambda dtype, device: torch.zeros_like(some(dtype, device)),
    "full of three": lambda dtype, device: torch.full((2,), 3.0, dtype=dtype, device=device),
    "full of five": lambda dtype, device: some(dtype, device).new_full((2,), 5),
    "diag": lambda dtype, device: some(dtype, device).diag(),
    "diag_embed": lambda dtype, device: some(dtype, device).diag_embed(1),
    "block_diag": lambda dtype, device: torch.block_diag(some(dtype, device), some(dtype, device)),
    "pad": lambda dtype, device: torch.constant_pad_nd(some(dtype, device), (1, 2)),
    "slice_scatter": lambda dtype, device: some(dtype, device).slice_scatter(source(2, device), 0, 0, 3, 2),
    "select_scatter": lambda dtype, device: some(dtype, device).select_scatter(source(1, device)[0], 0, 1),
    "diagonal_scatter": lambda dtype, device: some(dtype, device).diag().diagonal_scatter(source(3, device)),
}


def source(count: int, device: str) -> Tensor:
    return torch.tensor([1e9, -3.0, 0.0], device=device)[:count]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_operators_make_has_the_bits_of_the_cpu(dtype: torch.dtype, eager: bool) -> None:
    with eager_mode_context(eager):
        made = {name: make(dtype, "xla") for name, make in MADE.items()}
        torch_xla.sync()
        found = {name: tensor.cpu().view(torch.uint8).tolist() for name, tensor in made.items()}
    assert found == {name: make(dtype, "cpu").view(torch.uint8).tolist() for name, make in MADE.items()}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_a_scaled_product_that_is_too_large_ends_as_a_conversion_does(dtype: torch.dtype) -> None:
    # PyTorch's own product on the CPU saturates or becomes NaN, depending on the processor.
    row = torch.full((16, 16), 8.0).to(torch.float8_e4m3fn)
    moved, one = row.to("xla"), torch.ones((), device="xla")
    made = torch._scaled_mm(moved, moved.t(), one * 100, one, out_dtype=dtype).cpu()
    expected = (row.float() @ row.float().t() * 100).to(dtype)
    assert made.view(torch.uint8).tolist() == expected.view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_few_uploaded_numbers_can_be_checked_and_their_views_read(dtype: torch.dtype) -> None:
    host = torch.arange(1.0, 7.0).to(dtype).reshape(2, 3)
    tensor = host.to("xla")
    for view in (lambda x: x.t(), lambda x: x[:, ::2], lambda x: x.expand(2, 2, 3), lambda x: x[1, 1]):
        assert torch.equal(view(tensor).cpu().view(torch.uint8), view(host).contiguous().view(torch.uint8))
    with pytest.raises(NotImplementedError, match="not implemented for"):
        torch.bitwise_not(tensor)


@pytest.mark.parametrize("source", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e5m2fnuz])
def test_nan_has_the_bits_of_the_cpu(source: torch.dtype, dtype: torch.dtype) -> None:
    values = torch.tensor([math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5], dtype=source)
    made, expected = values.to("xla").to(dtype).cpu(), values.to(dtype)
    assert made.view(torch.uint8).tolist() == expected.view(torch.uint8).tolist()
