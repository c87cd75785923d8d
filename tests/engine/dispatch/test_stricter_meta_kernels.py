"""Calls that PyTorch's own meta kernels let pass are refused in the CPU's words, in every way of running."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.support.ways_to_run import WAYS, made_to_run
from torch_xla._engine.dispatch import stricter_meta_kernels

aten = torch.ops.aten

Call = Callable[[torch.Tensor], Any]

# Of a tensor of three numbers.
REFUSED: dict[str, Call] = {
    "average of no row": lambda x: F.adaptive_avg_pool2d(x[:0].expand(2, 3, 0), (2, 2)),
    "average of no column": lambda x: F.adaptive_avg_pool3d(x[:0, None].expand(2, 3, 3, 0, 3), (2, 2, 2)),
    "bags of another mode": lambda x: torch.embedding_bag(x.expand(3, 3), x.long() * 0, x[:1].long() * 0, False, 3),
    "boundaries of two dimensions": lambda x: torch.bucketize(x, x.expand(2, 3)),
    "bias of one channel": lambda x: F.conv2d(x.expand(1, 1, 4, 3), x.expand(3, 1, 3, 3), x[:1]),
    "bias of two dimensions": lambda x: F.conv_transpose2d(x.expand(1, 1, 4, 3), x.expand(1, 3, 3, 3), x[:, None]),
    "padding of a whole step": lambda x: F.conv_transpose2d(x.expand(1, 1, 4, 3), x.expand(1, 1, 3, 3), None, 2, 1, 2),
    "negative padding of a result": lambda x: F.conv_transpose1d(x.expand(1, 1, 3), x.expand(1, 1, 3), None, 2, 1, -1),
    "result without a row": lambda x: F.conv_transpose1d(x[:2].expand(1, 1, 2), x[:1].expand(1, 1, 1), None, 2, 2),
    "diagonal of another size": lambda x: torch.diagonal_scatter(x.expand(3, 3), x, 1),
    "samples of four dimensions": lambda x: F.fractional_max_pool3d(
        x.expand(1, 1, 3, 3, 3), 2, output_size=(2, 2, 2), _random_samples=x.expand(1, 1, 1, 3) / 4
    ),
    "weights of another size": lambda x: torch.histogram(x, 3, weight=x[:1]),
    "histogram without bins": lambda x: torch.histogram(x, 0),
    "two numbers for one place": lambda x: torch.index_reduce(x, 0, x[:1].long(), x[:2], "amax"),
    "places of two dimensions": lambda x: torch.index_reduce(x, 0, x[:1, None].long(), x[:1], "amax"),
    "reduction of another name": lambda x: torch.index_reduce(x, 0, x[:1].long(), x[:1], "most"),
    "driver of another name": lambda x: torch.linalg.lstsq(x.expand(4, 3), x.expand(4, 3), driver="fast"),
    "pivots with a batch": lambda x: torch.linalg.ldl_solve(x.diag(), x.int().expand(2, 3), x.expand(2, 3, 3)),
    "classes of other pixels": lambda x: F.nll_loss(x.expand(2, 2, 1, 3), x[:1].long().expand(2, 1, 1)),
    "norm of real numbers as a complex one": lambda x: torch._foreach_norm([x], 2, dtype=torch.complex64),
    "too few factors of reflectors": lambda x: torch.ormqr(x.expand(5, 3), x[:2], x.expand(5, 3)),
    "pixels that do not divide": lambda x: F.pixel_unshuffle(x.expand(1, 1, 0, 3), 2),
    "places for more": lambda x: torch.put(x, x[:2].long(), x),
    "roll by nothing": lambda x: torch.roll(x[:0], []),
    "neither side": lambda x: torch.searchsorted(x, x, side="middle"),
    "segments of float length": lambda x: torch.segment_reduce(x, "sum", lengths=x),
    "slice that is not there": lambda x: torch.select_scatter(x.expand(3, 3), x, 1, 3),
    "target that enlarges": lambda x: F.soft_margin_loss(x, x.expand(2, 3)),
    "two lengths for one": lambda x: torch._C._nn.upsample_linear1d(x.expand(1, 1, 3), [2, 2], True),
    "scores of another dtype": lambda x: aten._masked_softmax_backward(x, x.double(), x > 0),
}  # fmt: skip

# The CPU's kernels do not look at these arguments: some of such calls end the process there.
UNCHECKED: dict[str, tuple[Call, type[Exception], str]] = {
    "transform of no dimension": (
        lambda x: aten._fft_r2c(x, [2], 0, True),
        IndexError,
        r"Dimension out of range \(expected to be in range of \[-1, 0\], but got 2\)",
    ),
    "transform of halves": (
        lambda x: aten._fft_r2c(x.half(), [0], 0, True),
        RuntimeError,
        "aten::_fft_r2c expects float32, float64 or complex numbers of them, but got torch.float16",
    ),
    "transform to more": (
        lambda x: aten._fft_c2r(x + 0j, [0], 0, 9),
        RuntimeError,
        "aten::_fft_c2r expects 5 elements for a result of 9, but got 3. torch.fft.irfft gives it so many.",
    ),
    "transform to nothing": (
        lambda x: aten._fft_c2r((x + 0j)[:1], [0], 0, 0), RuntimeError, "expects 1 elements for a result of 0"
    ),
    "samples of another mode": (
        lambda x: aten.grid_sampler_3d(x.expand(1, 1, 3, 3, 3), x.expand(1, 1, 1, 1, 3), 3, 0, False),
        RuntimeError,
        "aten::grid_sampler_3d expects 0, 1 or 2 as interpolation_mode, but got 3",
    ),
    "too few pivots": (
        lambda x: torch.lu_unpack(x.diag() + 0j, x[:1].int()),
        RuntimeError,
        r"lu_unpack expects pivots of size \[3\], but got \[1\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_cpu_refuses_is_refused_in_its_words(name: str, way: str) -> None:
    refusals = []
    for device, how in (("cpu", "recorded"), ("xla", way)):
        with made_to_run(how, REFUSED[name]) as run, pytest.raises(Exception) as caught:
            run(torch.tensor([1.0, 2.0, 3.0], device=device))
        if caught.type is torch._dynamo.exc.TorchRuntimeError:  # Dynamo's own meta kernels have refused it
            assert how == "openxla"
            return
        refusals.append((caught.type, str(caught.value).splitlines()[0]))
    assert refusals[1] == refusals[0]


@pytest.mark.parametrize("way", ["recorded", "eager", "replay"])  # the kernels of Dynamo have words of their own
@pytest.mark.parametrize("name", UNCHECKED)
def test_what_the_cpu_does_not_look_at_is_refused_without_asking_it(name: str, way: str) -> None:
    call, error, words = UNCHECKED[name]
    with made_to_run(way, call) as run, pytest.raises(error, match=words):
        run(torch.tensor([1.0, 2.0, 3.0], device="xla"))


TAKEN: dict[str, Call] = {
    "padding below the step": lambda x: F.conv_transpose1d(x.expand(1, 1, 3), x.expand(1, 1, 3), None, 2, 1, 1),
    "padding below the dilation": lambda x: F.conv_transpose1d(
        x.expand(1, 1, 3), x.expand(1, 1, 3), x[:1], 2, 1, 3, dilation=4
    ),
    "grouped bias": lambda x: F.conv_transpose1d(x.expand(1, 2, 3), x.expand(2, 1, 3), x[:2], groups=2),
    "pivots of one of one": lambda x: torch.lu_unpack(x.diag()[None], x.int())[0],
    "pivots of one": lambda x: torch.lu_unpack(x.diag(), x.int()[None])[1],
    "other normalizations": lambda x: torch.view_as_real(aten._fft_c2c(x + 0j, [0], 7, True)),
    "last slice": lambda x: torch.select_scatter(x.expand(3, 3), x, 1, -3),
    "weights of one": lambda x: torch.histogram(x[0], 2, weight=x[:1])[0],
    "one number for one place": lambda x: torch.index_reduce(x[0], 0, x[0].long() - 1, x[1], "amax"),
}


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning")
@pytest.mark.parametrize("name", TAKEN)
def test_what_the_cpu_takes_is_taken(name: str) -> None:
    operand = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(TAKEN[name](operand.to("xla")).cpu(), TAKEN[name](operand))


def test_each_kernel_is_of_an_operator_that_there_is() -> None:
    for name in stricter_meta_kernels.KERNELS:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        assert getattr(getattr(aten, packet), overload or "default").name() == name
