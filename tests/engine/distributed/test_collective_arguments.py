"""The arguments that collectives refuse, and their work besides communication."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.distributed import collective_arguments
from torch_xla._engine.processes import identity


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "replica_count", lambda: 4)


@pytest.mark.parametrize("groups", [None, [], [[0, 1, 2, 3]], [[3, 0], (2, 1)], [[0], [1], [2], [3]]])
def test_groups_that_divide_the_replicas(groups: Any, four: None) -> None:
    collective_arguments.check_groups("f", groups)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (
            [[0, 1]],
            r"f\(\): groups \[\[0, 1\]\] do not hold each ordinal from 0 to 3 once; this program has 4",
        ),
        ([[0, 1], [1, 2, 3]], "do not hold each"),
        ([[0, 1, 2, 3, 4]], "do not hold each"),
        ([0, 1, 2, 3], "expected a list of lists of ordinals"),
    ],
)
def test_groups_that_do_not(groups: Any, words: str, four: None) -> None:
    with pytest.raises(ValueError, match=words):
        collective_arguments.check_groups("f", groups)


def test_mistakes_are_told_in_the_words_of_the_call(four: None) -> None:
    tensor = torch.ones(2, 3)
    for check, error, words in (
        (
            lambda: collective_arguments.check_reduction("f", "avg", []),
            ValueError,
            "f.*'avg'; expected one of 'sum', 'mul'",
        ),
        (
            lambda: collective_arguments.check_reduction("f", "and", [tensor.int(), tensor]),
            ValueError,
            r"f\(\): reduce_type 'and' combines the bits of integers and bools, .* torch\.float32; view it as integers",
        ),
        (
            lambda: collective_arguments.check_reduction("f", "max", [tensor.to(torch.complex64)]),
            ValueError,
            r"reduce_type 'max' compares numbers, .* torch\.complex64: .* reduce torch\.view_as_real\(tensor\)",
        ),
        (
            lambda: collective_arguments.check_ordinals("f", [0, 4]),
            ValueError,
            "no replica has ordinal 4; this program has 4",
        ),
        (lambda: collective_arguments.check_dim("f", tensor, 2), IndexError, r"expected \[-2, 1\], but got 2"),
        (lambda: collective_arguments.check_dim("f", torch.ones(()), 0), IndexError, "has no dimensions"),
        (
            lambda: collective_arguments.check_group_size("f", "split", 3, 4),
            ValueError,
            "split is 3; this program has 4 replicas",
        ),
        (
            lambda: collective_arguments.check_group_size("f", "split", 3, 2),
            ValueError,
            "split is 3; the group has 2 replicas",
        ),
        (lambda: collective_arguments.check_pairs([(0, 1), (2, 1)]), ValueError, "two sources send to one target"),
        (lambda: collective_arguments.check_pairs([(0, 1), (0, 2)]), ValueError, "one source sends to two targets"),
        (lambda: collective_arguments.check_pairs([(0, 4)]), ValueError, "no replica has ordinal 4"),
    ):
        with pytest.raises(error, match=words):
            check()
    assert collective_arguments.check_dim("f", tensor, -1) == 1 and collective_arguments.check_dim("f", tensor, 0) == 0
    collective_arguments.check_pairs([(0, 1), (1, 0), (3, 3)])


def test_a_scale_keeps_the_dtype_and_one_keeps_the_tensor() -> None:
    whole = torch.tensor([4, 6])
    assert collective_arguments.scaled(whole, 1.0) is whole
    halves = collective_arguments.scaled(whole, 0.5)
    assert halves.tolist() == [2, 3] and halves.dtype is torch.int64


def test_results_go_into_outputs_of_their_shape() -> None:
    one, other = torch.zeros(2), torch.zeros(3)
    assert collective_arguments.into(None, [1]) == [1]
    assert collective_arguments.into(one, torch.ones(2)) is one and one.tolist() == [1, 1]
    outputs = [one, other]
    assert (
        collective_arguments.into(outputs, [torch.full((2,), 5.0), torch.full((3,), 6.0)]) is outputs
        and other.tolist() == [6] * 3
    )
    with pytest.raises(ValueError, match=r"output has shape \[2\]; the result has \[3\]"):
        collective_arguments.into(one, torch.ones(3))
    with pytest.raises(ValueError):
        collective_arguments.into(outputs, [torch.ones(2)])
    leaf = torch.zeros(2, requires_grad=True)
    collective_arguments.write([leaf], [torch.ones(2)])
    assert leaf.tolist() == [1, 1]


def test_gradients_that_are_averaged_already_are_left_out() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = torch.optim.SGD([{"params": parameters[:2]}, {"params": parameters[2:]}], lr=0.1)
    for parameter in parameters[1:]:
        parameter.grad = torch.ones(2)
    setattr(parameters[2], collective_arguments.AVERAGED, True)
    (found,) = collective_arguments.gradients_of(optimizer)
    found.mul_(3)
    assert parameters[1].grad is not None and parameters[1].grad.tolist() == [3, 3]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 40), max_size=12), st.sampled_from([0.0, 1.0, 16.0]))
def test_buckets_keep_the_order_and_the_limit(kibibytes: list[int], mebibytes: float) -> None:
    tensors = [torch.empty(n * 2**18, device="meta") for n in kibibytes]  # sizes in MiB
    found = collective_arguments.buckets(tensors, mebibytes)
    assert [id(each) for bucket in found for each in bucket] == [id(each) for each in tensors]
    if not mebibytes:
        assert len(found) == bool(tensors)
    for bucket in found if mebibytes else ():
        assert len(bucket) == 1 or sum(each.nbytes for each in bucket) <= mebibytes * 2**20
