"""Dropout that keeps mean and variance: PyTorch's results, and the same numbers however the program is cut."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import torch_xla
from torch_xla.experimental.eager import eager_mode_context

NAMES = ["alpha_dropout", "feature_alpha_dropout"]
LIMIT = 1.7580993408473766

by_name = pytest.mark.parametrize("name", NAMES)
in_place = pytest.mark.parametrize("inplace", [False, True])


def base(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(150, dtype=dtype).reshape(2, 5, 3, 5) * 0.037 - 2.3


def drawn(name: str, inplace: bool, dtype: torch.dtype, p: float = 0.4) -> torch.Tensor:
    given = base(dtype).to("xla")
    torch.manual_seed(3)
    result = getattr(functional, name)(given, p, training=True, inplace=inplace)
    torch_xla.sync()
    found: torch.Tensor = result.cpu()
    return found


@by_name
@in_place
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_equal_seeds_draw_equal_numbers_in_every_way_of_running(name: str, inplace: bool, dtype: torch.dtype) -> None:
    def compiled(given: torch.Tensor, p: float) -> torch.Tensor:
        return getattr(functional, name)(given.clone(), p, training=True, inplace=inplace)  # type: ignore[no-any-return]

    expected = drawn(name, inplace, dtype)
    with eager_mode_context(True):
        assert torch.equal(drawn(name, inplace, dtype), expected)
    given = base(dtype).to("xla")
    for run in (torch.compile(compiled, backend="openxla"), torch_xla.compile(compiled, replay=True)):
        for _ in range(4):
            torch.manual_seed(3)
            found = run(given, 0.4)
            torch_xla.sync()
            assert torch.equal(found.cpu(), expected)
    drawn(name, inplace, dtype, 0.3)  # from here on the rate is an argument of the program
    assert torch.equal(drawn(name, inplace, dtype), expected)


@by_name
@in_place
def test_elements_gradients_and_versions_are_those_of_the_cpu(name: str, inplace: bool) -> None:
    p = 0.4
    scale = 1 / math.sqrt((LIMIT * LIMIT * p + 1) * (1 - p))

    def run(device: str) -> tuple[torch.Tensor, torch.Tensor, int]:
        given = base(torch.float64).to(device).requires_grad_()
        start = given * 1
        result = getattr(functional, name)(start, p, training=True, inplace=inplace)
        result.sum().backward()
        assert given.grad is not None
        return result.detach().cpu(), given.grad.cpu(), start._version

    torch.manual_seed(3)
    (result, grad, version), expected = run("xla"), run("cpu")
    assert version == expected[2]
    torch.testing.assert_close(grad.unique(), expected[1].unique())
    kept = grad != 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(result[kept], (base(torch.float64)[kept] + LIMIT * p) * scale)
    torch.testing.assert_close(result[~kept], torch.full_like(result[~kept], LIMIT * (p - 1) * scale))


@by_name
def test_what_draws_nothing_is_left_to_pytorch(name: str) -> None:
    call: Callable[..., torch.Tensor] = getattr(torch, name)
    given = torch.full((3, 4), -0.5, device="xla")
    assert torch.equal(call(given, 0.3, False), given)
    assert torch.equal(call(given, 0.0, True), given) and call(given, 1.0, True).unique().tolist() == [0]
    with pytest.raises(RuntimeError, match="dropout probability has to be between 0 and 1, but got 1.5"):
        call(given, 1.5, True)
    with pytest.raises(NotImplementedError, match="\"bernoulli_scalar_cpu_\" not implemented for 'ComplexFloat'"):
        call(given.to(torch.complex64), 0.5, True)
    with torch.inference_mode():
        assert call(torch.ones(3, 4, device="xla"), 0.3, True).unique().numel() <= 2
