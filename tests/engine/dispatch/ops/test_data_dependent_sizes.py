"""Operators whose values decide the size of their result run on the device and read one number."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_xla.debug.metrics as met
from tests.support.twins import check_same
from torch_xla._engine.metrics.report import READS

NAN = float("nan")
MATRIX = torch.tensor([[1, 0, 2], [0, 3, 0], [1, 0, 2]])
FLOATS = torch.tensor([2.0, NAN, -0.0, 2.0, 0.0, NAN])

CALLS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]] = {
    "nonzero": lambda on: on(MATRIX).nonzero(),
    "nonzero, none": lambda on: on(torch.zeros(3)).nonzero(),
    "nonzero, one": lambda on: on(torch.tensor([[0, 2]])).nonzero(),
    "nonzero, one dimension": lambda on: on(torch.ones(3)).nonzero(),
    "nonzero, no dimensions": lambda on: on(torch.tensor(3)).nonzero(),
    "nonzero, tuple": lambda on: on(MATRIX.t()).nonzero(as_tuple=True),
    "nonzero_static": lambda on: torch.nonzero_static(on(MATRIX), size=9),
    "nonzero_static, empty": lambda on: torch.nonzero_static(on(torch.ones(2, 0)), size=2, fill_value=7),
    "masked_select": lambda on: torch.masked_select(on(MATRIX), on(torch.tensor([True, False, True]))),
    "index": lambda on: on(MATRIX)[on(MATRIX > 0)],
    "index, mask and place": lambda on: on(MATRIX)[on(torch.tensor([True, False, True])), on(torch.tensor([2, 1]))],
    "unique": lambda on: torch.unique(on(MATRIX), return_inverse=True, return_counts=True),
    "unique of floats": lambda on: torch.unique(on(FLOATS), return_counts=True),
    "unique of nothing": lambda on: torch.unique(on(torch.empty(0)), return_inverse=True, return_counts=True),
    "unique rows": lambda on: torch.unique(on(MATRIX), dim=0, return_inverse=True, return_counts=True),
    "unique columns": lambda on: torch.unique(on(MATRIX), dim=1),
    "unique_consecutive": lambda on: torch.unique_consecutive(on(MATRIX), return_inverse=True, return_counts=True),
    "unique_consecutive rows": lambda on: torch.unique_consecutive(on(MATRIX), dim=0),
    "repeat_interleave": lambda on: torch.repeat_interleave(on(MATRIX), on(torch.tensor([2, 0, 1])), dim=0),
    "bincount": lambda on: torch.bincount(on(torch.tensor([1, 1, 4]))),
    "bincount, weights": lambda on: torch.bincount(on(torch.tensor([1, 1, 4])), on(torch.tensor([0.5, 1, 2])), 7),
    "bincount of nothing": lambda on: torch.bincount(on(torch.empty(0, dtype=torch.int32)), minlength=2),
    "tensor_split": lambda on: on(MATRIX).tensor_split(on(torch.tensor([1, 2])), dim=1),
}


@pytest.fixture(autouse=True)
def nothing_ran_on_the_cpu() -> Iterator[None]:
    met.clear_all()
    yield
    assert not set(met.executed_fallback_ops()) - set(READS)


@pytest.mark.parametrize("name", CALLS)
def test_sizes_and_values_agree(name: str) -> None:
    ours, theirs = CALLS[name](lambda t: t.to("xla")), CALLS[name](lambda t: t)
    pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (ours, theirs)), strict=True)
    for mine, yours in pairs:
        assert mine.device.type == "xla" and mine.dtype is yours.dtype
        torch.testing.assert_close(mine.cpu(), yours, equal_nan=True)
        assert mine.numel() == 0 or mine.stride() == yours.stride()


def test_the_one_wait_is_a_read_of_a_scalar() -> None:
    torch.tensor([3.0, 0.0], device="xla").nonzero()
    assert met.counter_value(READS[0]) == 1


def test_gradients_go_to_what_was_chosen() -> None:
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]], device="xla", requires_grad=True)
    x[x > 1].sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[0, 1], [1, 0]]
    x.grad = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.masked_select(x, x > 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[0, 0], [1, 0]]


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.masked_select(torch.ones(2, device=d), torch.ones(2, device=d)),
        lambda d: torch.bincount(torch.tensor([-1], device=d)),
        lambda d: torch.bincount(torch.ones(2, device=d)),
        lambda d: torch.bincount(torch.ones(2, device=d).int(), torch.ones(3, device=d)),
        lambda d: torch.unique(torch.ones(2, 0, device=d), dim=0),
        lambda d: torch.unique(torch.ones(2, device=d).cfloat()),
        lambda d: torch.unique(torch.ones(3, device=d), dim=4),
        lambda d: torch.ones(3, device=d)[torch.ones(2, device=d, dtype=torch.bool)],
    ],
)
def test_mistakes_raise_what_the_cpu_raises(call: Callable[[str], Any]) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        call("cpu")
    with pytest.raises(type(theirs.value)):
        call("xla")


@pytest.mark.parametrize("dim", [None, 0])
def test_what_is_distinct_of_nothing_has_memory_of_its_own(dim: int | None) -> None:
    nothing = torch.ones(0, 3, device="xla")
    assert torch.unique_consecutive(nothing, dim=dim).untyped_storage()._cdata != nothing.untyped_storage()._cdata


def made_on(device: str, *numbers: int) -> torch.Tensor:
    """The numbers, computed where they are: the host of a device does not know them."""
    return torch.tensor(numbers, device=device) + 0


@pytest.mark.parametrize("make", [made_on, lambda d, *n: torch.tensor(n, device=d)], ids=["computed", "known"])
def test_places_are_repeated_as_often_as_numbers_say(make: Callable[..., torch.Tensor]) -> None:
    check_same(lambda d: torch.repeat_interleave(made_on(d, 4, 5, 6), make(d, 2, 0, 3)))
    check_same(lambda d: torch.repeat_interleave(make(d, 2, 0, 3), output_size=5))
    check_same(lambda d: torch.repeat_interleave(make(d, 2, 0, 3).int()))
    check_same(lambda d: torch.repeat_interleave(make(d, 9, 2, 0)[1:]))
    check_same(lambda d: torch.repeat_interleave(make(d, 1)[:0]))


@pytest.mark.parametrize("make", [made_on, lambda d, *n: torch.tensor(n, device=d)], ids=["computed", "known"])
@pytest.mark.parametrize("numbers", [(1, -2, 3, 1), (-1, 0, 0, 0), (-1, 4, 4, 4)], ids=str)
def test_nothing_is_repeated_a_negative_number_of_times(make: Callable[..., torch.Tensor], numbers: Any) -> None:
    x = torch.arange(4, device="xla")
    with pytest.raises(RuntimeError, match="repeats can not be negative; the least is -"):
        torch.repeat_interleave(x, make("xla", *numbers))


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.repeat_interleave(torch.tensor([1, 2], device=d), output_size=5),
        lambda d: torch.repeat_interleave(torch.tensor([1, 2], device=d), output_size=-1),
        lambda d: torch.repeat_interleave(torch.tensor([[1, 2]], device=d)),
        lambda d: torch.repeat_interleave(torch.tensor([1.0], device=d)),
        lambda d: torch.repeat_interleave(torch.tensor([True], device=d)),
        lambda d: torch.arange(4, device=d).tensor_split(torch.tensor(-1, device=d)),
        lambda d: torch.bincount(made_on(d, 1 << 60)),
    ],
)
def test_sizes_that_values_give_are_refused_as_on_the_cpu(call: Callable[[str], Any]) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        call("cpu")
    with pytest.raises(type(theirs.value)):
        call("xla")


@pytest.mark.parametrize("places", [[1.5, 2.0], [[1, 2]], [True]], ids=str)
@pytest.mark.parametrize("numbers", [[1, 2, 3], 1], ids=str)
def test_places_to_split_at_are_refused_in_the_words_of_the_cpu(places: Any, numbers: Any) -> None:
    said = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as refused:
            torch.tensor(numbers, device=device).tensor_split(torch.tensor(places, device=device))
        said.append(str(refused.value))
    assert said[0] == said[1]


def test_places_go_to_memory_of_the_same_device() -> None:
    with pytest.raises(RuntimeError, match="same device, but got out on cpu and self on xla:0. Move it with"):
        torch.nonzero(torch.ones(2, device="xla"), out=torch.empty(0, dtype=torch.int64))


def test_a_shape_is_read_from_a_tensor() -> None:
    shaped = torch.ops.aten._reshape_from_tensor(torch.arange(6).to("xla"), torch.tensor([2, 3]).to("xla"))
    assert shaped.tolist() == [[0, 1, 2], [3, 4, 5]]
