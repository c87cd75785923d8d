"""Images, lines and volumes resized in every mode as a user asks for it: values, gradients, strides."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.functional import interpolate

from tests.support.twins import check_same, outcome
from torch_xla.debug import metrics

IMAGES = {3: (2, 3, 9), 4: (2, 3, 7, 9), 5: (2, 3, 4, 5, 6)}
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
MODES = [
    (mode, dims)
    for dims, special in ((3, ("linear",)), (4, ("bilinear", "bicubic")), (5, ("trilinear",)))
    for mode in ("nearest", "nearest-exact", "area", *special)
]
CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 2e-5}, torch.float64: {}, torch.bfloat16: {"rtol": 2e-2, "atol": 3e-2}}


def settings(mode: str, dims: int) -> Iterator[dict[str, Any]]:
    sizes: list[dict[str, Any]] = [
        {"size": (2, 17, 3)[: dims - 2]},
        {"scale_factor": 1.7},
        {"scale_factor": (0.6, 2.0, 1.3)[: dims - 2]},
        {"scale_factor": 0.7, "recompute_scale_factor": True},
    ]
    for size in sizes:
        if mode not in ("linear", "bilinear", "bicubic", "trilinear"):
            yield size
            continue
        yield {**size, "align_corners": False}
        yield {**size, "align_corners": True}


def image(dims: int, d: str, dtype: torch.dtype, is_last: bool) -> torch.Tensor:
    numbers = torch.randn(IMAGES[dims], generator=torch.Generator().manual_seed(dims), dtype=torch.float64).to(dtype)
    return (numbers.contiguous(memory_format=FORMATS[dims]) if is_last else numbers).to(d).requires_grad_()


def resized(d: str, dtype: torch.dtype, mode: str, dims: int, is_last: bool, **given: Any) -> list[torch.Tensor]:
    results = []
    for setting in settings(mode, dims):
        if given.get("antialias") and "recompute_scale_factor" in setting:
            continue
        x = image(dims, d, dtype, is_last)
        result = interpolate(x, mode=mode, **setting, **given)
        slopes = (torch.arange(result.numel()) % 7 - 2).reshape(result.shape).to(dtype).to(d)
        results += [result.detach(), *torch.autograd.grad(result, x, slopes)]
    return results


@pytest.mark.parametrize(
    "dtype", [pytest.param(d, marks=[pytest.mark.slow] * (d is not torch.float32)) for d in CLOSE], ids=str
)
@pytest.mark.parametrize(("mode", "dims"), MODES, ids=str)
def test_every_mode_resizes_as_the_cpu_does(mode: str, dims: int, dtype: torch.dtype) -> None:
    check_same(lambda d: resized(d, dtype, mode, dims, False), strides=False, **CLOSE[dtype])
    assert not metrics.executed_fallback_ops()


@pytest.mark.parametrize(("mode", "dims"), [case for case in MODES if case[1] in FORMATS], ids=str)
def test_channels_stay_last(mode: str, dims: int) -> None:
    # The order of a gradient is that of its formula; of a leaf it is the leaf's.
    check_same(lambda d: resized(d, torch.float32, mode, dims, True)[::2], **CLOSE[torch.float32])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiasing_resizes_as_the_cpu_does(mode: str, dtype: torch.dtype) -> None:
    check_same(lambda d: resized(d, dtype, mode, 4, False, antialias=True), strides=False, **CLOSE[dtype])
    check_same(lambda d: resized(d, dtype, mode, 4, True, antialias=True)[::2], **CLOSE[dtype])


@pytest.mark.parametrize(("mode", "dims"), MODES, ids=str)
def test_images_without_channels_are_refused_where_the_cpu_refuses_them(mode: str, dims: int) -> None:
    for size in ((2, 0), (0, 3)):
        results: dict[str, list[int]] = {}

        def program(d: str, size: tuple[int, ...] = size, results: dict[str, list[int]] = results) -> None:
            results[d] = list(
                interpolate(torch.ones(*size, *IMAGES[dims][2:], device=d), scale_factor=2, mode=mode).shape
            )

        theirs, ours = outcome(program, "cpu"), outcome(program, "xla")
        assert type(ours) is type(theirs) and str(ours) == str(theirs) and results.get("xla") == results.get("cpu")


@pytest.mark.parametrize(("mode", "dims"), [case for case in MODES if case[0] != "area"], ids=str)
def test_whole_numbers_are_resized_where_the_cpu_resizes_them(mode: str, dims: int) -> None:
    for antialias in (False, True)[: 1 + (mode in ("bilinear", "bicubic"))]:
        for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
            for size in ((4,) * (dims - 2), IMAGES[dims][2:]):

                def program(d: str, of: Any = (dtype, size, antialias)) -> torch.Tensor:
                    x = torch.ones(IMAGES[dims], device=d).to(of[0])
                    return interpolate(x, size=of[1], mode=mode, antialias=of[2])

                theirs, ours = outcome(program, "cpu"), outcome(program, "xla")
                assert type(ours) is type(theirs) and str(ours) == str(theirs), (dtype, size, antialias)


def test_antialiasing_leaves_whole_numbers_of_the_same_size_as_they_are() -> None:
    x = torch.arange(12).view(1, 1, 3, 4)
    found = interpolate(x.to("xla"), size=(3, 4), mode="bicubic", antialias=True)
    assert found.dtype is torch.int64 and found.cpu().equal(x)
