"""Embeddings and their gradients agree with PyTorch on the CPU."""

from typing import Any

import pytest
import torch

import torch_xla._engine.lowering.indexing.embedding  # noqa: F401
from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule

aten = torch.ops.aten

SUM, MEAN, MAX = range(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
def test_rows_are_looked_up_and_gradients_summed(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    weight = torch.randn(7, 3).to(dtype)
    indices = torch.tensor([[0, 2, 2], [6, 2, 1]], dtype=index_dtype)
    # Multiples of 1/4, whose sums bfloat16 holds exactly: PyTorch rounds after each addition.
    grad = torch.randint(-8, 9, (2, 3, 3)).to(dtype) / 4
    calls = [call(aten.embedding.default, weight, i) for i in (indices, indices[0, 0], indices[:0])]
    for padding, by_frequency in ((-1, False), (2, False), (0, False)):
        calls.append(call(aten.embedding_dense_backward.default, grad, indices, 7, padding, by_frequency))
    calls.append(call(aten.embedding_dense_backward.default, grad[:0], indices[:0], 7, -1, False))
    check_calls(calls)


def test_gradients_are_divided_by_the_frequency_of_a_row() -> None:
    indices, grad = torch.tensor([[0, 2, 2], [6, 2, 1]]), torch.randn(2, 3, 3)
    check_calls(call(aten.embedding_dense_backward.default, grad, indices, 7, padding, True) for padding in (-1, 2))


def test_gradients_of_narrow_floats_add_up_in_float32() -> None:
    ones, indices = torch.ones(1000, 2, dtype=torch.bfloat16), torch.zeros(1000, dtype=torch.int64)
    assert apply_rule(aten.embedding_dense_backward.default, ones, indices, 3, -1, False)[0].tolist() == [1000, 1000]


def test_a_row_outside_the_table_adds_nothing() -> None:
    indices, ones = torch.tensor([1, 9, -4]), torch.ones(3, 2)
    got = apply_rule(aten.embedding_dense_backward.default, ones, indices, 3, -1, False)
    assert got.tolist() == [[0, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize("order", [1.0, 2.0, float("inf")])
def test_only_rows_looked_up_are_shortened(order: float) -> None:
    weight, indices = torch.randn(6, 4) * 3, torch.tensor([[0, 2], [2, 5]])
    check_calls([call(aten.embedding_renorm.default, weight, indices, 1.5, order)])


WEIGHT = torch.randint(-9, 10, (8, 3)).float()
INDICES = torch.tensor([1, 2, 2, 7, 0, 3, 1, 5, 2])
OFFSETS = torch.tensor([0, 3, 3, 4, 8])
LAST = torch.tensor([0, 3, 3, 4, 9])
SAMPLE_WEIGHTS = torch.randn(9)


def bags(mode: int, padding: int, last: bool, weights: Any = None, by_frequency: bool = False) -> tuple[Any, ...]:
    return (WEIGHT, INDICES, LAST if last else OFFSETS, by_frequency, mode, False, weights, last, padding)


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("last", [False, True])
def test_bags_of_rows_are_reduced(mode: int, padding: int, last: bool) -> None:
    for weights in (None, SAMPLE_WEIGHTS) if mode == SUM else (None,):
        args = bags(mode, padding, last, weights)
        got, expected = apply_rule(aten._embedding_bag.default, *args), aten._embedding_bag(*args)
        torch.testing.assert_close(got[0], expected[0])
        count = 5 - last
        if expected[1].numel():
            assert torch.equal(got[1], expected[1])
        counted = [INDICES[a:b].ne(padding).sum() for a, b in zip(OFFSETS, [*OFFSETS[1:], 9], strict=True)][:count]
        if not last:
            assert torch.equal(got[2], torch.stack(counted))
        # PyTorch reports these shapes for other devices.
        shapes = [part.shape for part in aten._embedding_bag(*[x.to("meta") if hasattr(x, "to") else x for x in args])]
        assert [part.shape for part in got] == shapes
        if mode == MAX:
            assert torch.equal(got[3], expected[3])


def gradient_args(grad: torch.Tensor, saved: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    _, indices, offsets, by_frequency, mode, sparse, weights, _, padding = args
    return (grad, indices, offsets, *saved[1:], 8, by_frequency, mode, sparse, weights, padding)


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("last", [False, True])
def test_gradients_of_bags_agree(mode: int, padding: int, last: bool) -> None:
    grad = torch.randn(5 - last, 3)
    for weights in (None, SAMPLE_WEIGHTS) if mode == SUM else (None,):
        args = bags(mode, padding, last, weights)
        ours, theirs = apply_rule(aten._embedding_bag.default, *args), aten._embedding_bag(*args)
        got = apply_rule(aten._embedding_bag_backward.default, *gradient_args(grad, ours, args))
        torch.testing.assert_close(got, aten._embedding_bag_backward(*gradient_args(grad, theirs, args)))


@pytest.mark.parametrize("padding", [-1, 2])
def test_gradients_of_bags_are_divided_by_the_frequency_of_a_row(padding: int) -> None:
    # PyTorch's kernel for the CPU divides by another row's frequency; its embedding does not.
    grad, args = torch.randn(5, 3), bags(SUM, padding, False, by_frequency=True)
    saved = apply_rule(aten._embedding_bag.default, *args)
    got = apply_rule(aten._embedding_bag_backward.default, *gradient_args(grad, saved, args))
    torch.testing.assert_close(got, aten.embedding_dense_backward(grad[saved[1]], INDICES, 8, padding, True))


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("last", [False, True])
def test_gradients_of_the_weights_of_samples_agree(padding: int, last: bool) -> None:
    args, grad = bags(SUM, padding, last, SAMPLE_WEIGHTS), torch.randn(5 - last, 3)
    op = aten._embedding_bag_per_sample_weights_backward.default
    bag = apply_rule(aten._embedding_bag.default, *args)[1]
    check_calls(call(op, grad, WEIGHT, INDICES, args[2], given, SUM, padding) for given in (bag, bag[:0]))


def test_bags_without_indices_are_zero() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    for mode in (SUM, MEAN, MAX):
        args = (WEIGHT, nothing, torch.tensor([0, 0]), False, mode)
        assert torch.equal(apply_rule(aten._embedding_bag_forward_only.default, *args)[0], torch.zeros(2, 3))
