"""The whole steps of optimizers: by their rules and by PyTorch's operators they give what PyTorch's functions give."""

from itertools import product

import pytest
import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from tests.support.rules import check_rule
from torch_xla._engine.lowering.training.multi_tensor_steps import ADAM, ADAM_OF_EQUAL_COUNTS, SGD

SHAPES = [(3, 4), (), (0, 2)]


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def assert_same_bits(one: tuple[list[torch.Tensor], ...], other: tuple[list[torch.Tensor], ...]) -> None:
    torch.testing.assert_close([*map(list, one)], [*map(list, other)], rtol=0, atol=0)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam_is_pytorchs(amsgrad: bool) -> None:
    for decoupled, maximize, counts in product((False, True), (False, True), ((4.0,) * 3, (1.0, 7.0, 2.0))):
        lists = [tensors(1), tensors(3), [each.abs() for each in tensors(4)]]
        lists.append([each.abs() for each in tensors(5)] if amsgrad else [])
        sizes = [-0.1 / (1 - 0.9**count) for count in counts]
        roots = [(1 - 0.99**count) ** 0.5 for count in counts]
        arguments = (
            *lists, tensors(2), maximize, 1 - 0.1 * 0.2 if decoupled else None, None if decoupled else 0.2, 1 - 0.9,
            0.99, 1 - 0.99, 1e-8, roots, sizes,
        )  # fmt: skip
        check_rule(ADAM, *arguments)
        found = ADAM(*arguments)
        if len({*counts}) == 1:
            shared = *arguments[:-2], roots[0], sizes[0]
            check_rule(ADAM_OF_EQUAL_COUNTS, *shared)
            assert_same_bits(ADAM_OF_EQUAL_COUNTS(*shared), found)
        steps = [torch.tensor(count - 1) for count in counts]
        adam(
            lists[0], tensors(2), *lists[1:], steps, foreach=False, decoupled_weight_decay=decoupled, amsgrad=amsgrad,
            beta1=0.9, beta2=0.99, lr=0.1, weight_decay=0.2, eps=1e-8, maximize=maximize,
        )  # fmt: skip
        torch.testing.assert_close([list(each) for each in found], lists)


def test_sgd_is_pytorchs() -> None:
    for nesterov, maximize, momentum in ((True, False, 0.9), (False, True, 0.9), (False, False, 0.0)):
        params, buffers = tensors(1), tensors(3) if momentum else []
        dampening = 0.0 if nesterov else 0.3
        arguments = params, buffers, tensors(2), maximize, 0.2, momentum, 1 - dampening, nesterov, -0.1
        check_rule(SGD, *arguments)
        found = SGD(*arguments)
        sgd(
            params, tensors(2), [*buffers] or [None] * len(params), foreach=False, weight_decay=0.2, momentum=momentum,
            lr=0.1, dampening=dampening, nesterov=nesterov, maximize=maximize,
        )  # fmt: skip
        torch.testing.assert_close([list(each) for each in found], [params, buffers])
