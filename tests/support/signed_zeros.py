"""Compare the signs of zeros with PyTorch's on the CPU, in each way of running."""

from collections.abc import Callable, Sequence

import torch

from .ways_to_run import made_to_run


def check_signs(way: str, function: Callable[..., Sequence[torch.Tensor]], *operands: torch.Tensor) -> None:
    """Call a function three times on `xla`: the sign bits of its results are the CPU's."""
    expected = function(*operands)
    with made_to_run(way, function) as run:
        for _ in range(3):
            found = run(*(operand.to("xla") for operand in operands))
            for number, (made, each) in enumerate(zip(found, expected, strict=True)):
                made = made.cpu()
                assert torch.equal(made == 0, each == 0), f"result {number}: {made}, expected {each}"
                assert torch.equal(made.signbit(), each.signbit()), f"result {number}: {made}, expected {each}"
