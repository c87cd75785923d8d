"""Writing into `out=` counts, converts and lays out as on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
from tests.support.twins import check_same


@pytest.mark.parametrize(
    "fill",
    [
        lambda out: torch.arange(0, 4, out=out),
        lambda out: torch.linspace(0, 1, 4, out=out),
        lambda out: torch.logspace(0, 1, 4, out=out),
    ],
)
def test_numbers_in_order_keep_the_size_of_their_memory(fill: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def program(d: str) -> Any:
        rows = torch.zeros(2, 3, device=d)
        return fill(rows.narrow(1, 1, 2)), rows, fill(torch.empty(0, device=d))

    check_same(program)


def test_arange_tells_that_it_enlarges_its_target_in_its_own_words() -> None:
    found = []
    for device in ("cpu", "xla"):
        line = torch.zeros(1, 3, device=device)
        with pytest.warns(UserWarning, match=r"^The number of elements in the out tensor") as told:
            torch.arange(0, 4, out=line)
        found.append((line.tolist(), str(told[0].message).partition(" (Triggered")[0], told[0].filename))
    assert found[0] == found[1]


FRACTIONS = [(0.5, 3.5, 1.5), (0.5, 3.5, 2.5), (3, 0, -1.5), (3.5, -2.9, -1.5)]


def test_numbers_are_truncated_before_they_are_counted() -> None:
    """Of every integer dtype, made or written into `out=`, with a step and without."""

    def made(d: str) -> list[Any]:
        found = []
        for dtype in (torch.int64, torch.uint8, torch.float16):
            for start, end, step in FRACTIONS:
                out = [torch.empty(0, dtype=dtype, device=d) for _ in range(2)]
                with pytest.warns(UserWarning, match="torch.range is deprecated"):
                    found.append(torch.range(start, end, step, dtype=dtype, device=d))
                torch.ops.aten.range.out(start, end, step, out=out[0])
                torch.ops.aten.range.out_(end, start + end, out=out[1])
                found += out
        torch_xla.sync()  # all of them in one program
        return [(each.tolist(), each.dtype) for each in found]

    assert made("xla") == made("cpu")


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize("step", [0.7, -0.7])
def test_a_step_that_an_integer_loses_is_refused(step: float) -> None:
    """PyTorch's own kernels divide by this step, on the CPU and on meta tensors."""
    for dtype in (torch.int64, torch.uint8):
        with pytest.raises(RuntimeError, match=f"step must be nonzero; got {step}, which is 0 in {dtype}"):
            torch.range(1, 1 + 3 * step, step, dtype=dtype, device="xla")
        with pytest.raises(RuntimeError, match="step must be nonzero"):
            torch.range(1, 1 + 3 * step, step, out=torch.empty(0, dtype=dtype, device="xla"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_a_scaled_product_has_the_dtype_of_its_out(dtype: torch.dtype) -> None:
    def product(d: str) -> torch.Tensor:
        operand, scale = torch.full((16, 16), 4.0, device=d).to(torch.float8_e4m3fn), torch.ones((), device=d)
        return torch._scaled_mm(operand, operand.t(), scale, scale, out=torch.zeros(16, 16, device=d).to(dtype))

    assert product("xla").cpu().float().equal(product("cpu").float())


OF_THE_DTYPE_OF_OUT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cumprod": lambda x, out: torch.cumprod(x, 1, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 1, out=out),
    "mean": lambda x, out: torch.mean(x, 1, out=out),
    "mean of all": lambda x, out: torch.ops.aten.mean.dtype_out(x, out=out),
    "nanmean": lambda x, out: torch.ops.aten.nanmean.out(x, [1], out=out),
    "nansum": lambda x, out: torch.nansum(x, 1, out=out),
    "prod": lambda x, out: torch.prod(x, 1, out=out),
    "sum": lambda x, out: torch.sum(x, 1, out=out),
    "sum of all": lambda x, out: torch.ops.aten.sum.out(x, out=out),
}


@pytest.mark.parametrize("name", list(OF_THE_DTYPE_OF_OUT))
def test_elements_are_converted_to_the_dtype_of_out_before_they_are_summed(name: str) -> None:
    """Whole parts are summed into an integer, and a narrow float does not overflow on its way to a wide one."""
    fill, numbers = OF_THE_DTYPE_OF_OUT[name], torch.tensor([[-1.7, 300.6, 2.6], [2.5, 40000.0, 39000.0]])

    def filled(d: str, operand: torch.dtype, target: torch.dtype) -> object:
        try:
            return fill(numbers.to(d, operand), torch.empty(0, dtype=target, device=d))
        except Exception as refusal:  # whatever the CPU raises is expected
            return type(refusal)

    pairs = [
        (filled("cpu", operand, target), filled("xla", operand, target))
        for operand in (torch.float16, torch.float32, torch.int64)
        for target in (torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool)
    ]
    torch_xla.sync()
    for theirs, ours in pairs:
        if isinstance(theirs, torch.Tensor) and isinstance(ours, torch.Tensor):
            torch.testing.assert_close(ours.cpu(), theirs)
        else:
            assert ours is theirs


@pytest.mark.parametrize("sizes", [((), ()), ((3,), ())])
@pytest.mark.parametrize("writes", [False, True])
def test_chunks_of_tensors_without_dimensions_are_refused_before_a_kernel_reads_their_sizes(
    sizes: tuple[tuple[int, ...], ...], writes: bool
) -> None:
    out = {"out": torch.empty(0, device="xla")} if writes else {}
    with pytest.raises(
        RuntimeError, match=r"_chunk_cat expects tensors with one dimension or more, but tensor \d of 2"
    ):
        torch._chunk_cat([torch.ones(size, device="xla") for size in sizes], 0, 2, **out)  # PyTorch's own crashes
    check_same(lambda d: torch._chunk_cat([torch.ones(3, device=d), torch.ones(1, device=d)], 0, 2))
    check_same(lambda d: torch._chunk_cat([torch.ones(3, device=d)] * 2, 0, 2, out=torch.empty(0, device=d)))
