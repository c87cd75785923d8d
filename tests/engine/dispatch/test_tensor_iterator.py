"""Elementwise results have PyTorch's strides, also with one element or none."""

import random
from collections.abc import Callable
from typing import Any

import torch

from torch_xla._engine.dispatch.tensor_iterator import stride_of_indexed, stride_of_result

INDEX_SIZES = [(1,), (2,), (2, 2), (1, 2), (2, 1), (), (0,)]


def permuted(dice: random.Random, size: list[int]) -> torch.Tensor:
    order = dice.sample(range(len(size)), len(size))
    return torch.zeros([size[dim] for dim in order]).permute([order.index(dim) for dim in range(len(size))])


def test_what_is_indexed_lies_as_on_the_cpu() -> None:
    dice, tried = random.Random(1), 0
    while tried < 1000:
        source = permuted(dice, [dice.choice([0, 1, 1, 2, 2, 2, 2, 3, 3]) for _ in range(dice.randint(1, 4))])
        source = source[::2] if dice.random() < 0.2 else source
        sizes = [dice.choice(INDEX_SIZES) if dice.random() < 0.65 else None for _ in source.shape]
        if not any(size is not None for size in sizes):
            continue
        indices: Any = [None if size is None else permuted(dice, list(size)).long() for size in sizes]
        try:
            expected = torch.ops.aten.index.Tensor(source, indices)
        except IndexError:
            continue  # nothing to be indexed
        tried += 1
        found = stride_of_indexed(source, indices, tuple(expected.shape))
        assert found == expected.stride(), (source.shape, source.stride(), sizes)


def test_what_is_computed_element_by_element_lies_as_on_the_cpu() -> None:
    dice = random.Random(2)
    functions: list[Callable[..., torch.Tensor]] = [torch.add, torch.atan2, lambda a, b: torch.addcmul(a, a, b)]
    for _ in range(500):
        size = [dice.choice([0, 1, 1, 2, 3]) for _ in range(dice.randint(2, 4))]
        operands = [permuted(dice, [1 if n == 1 or dice.random() < 0.2 else n for n in size]) for _ in range(2)]
        result = dice.choice(functions)(*operands)
        if all(o.shape == result.shape for o in operands):
            continue  # operands with equal sizes and strides are copied without changes
        assert stride_of_result(tuple(result.shape), operands) == result.stride(), [
            (o.shape, o.stride()) for o in operands
        ]


def test_indices_on_the_device_lie_so_too() -> None:
    found = []
    for device in ("cpu", "xla"):
        x, index = torch.zeros(2, 3, 1, device=device).permute(2, 1, 0), torch.tensor([1, 0], device=device)
        nothing = index[:0]
        results = [
            x[:, index],
            x[:, :, index],
            x[0, index],
            x[nothing],
            x[:, nothing, index[0]],
            x[index * 0, :, index],
        ]
        found.append([(tuple(r.shape), r.stride()) for r in results])
    assert found[0] == found[1]
