"""The tensors that a function uses besides its arguments are found without computing anything."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_xla._engine.compiled.loops.closure_captures import Tracing, with_captured


def on_xla(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).to("xla")


def test_what_is_used_is_captured_in_the_order_of_first_use() -> None:
    first, second = on_xla(1), on_xla(2, 2)
    stage = Tracing()
    x = stage.describe(on_xla(5, 6))
    result = stage.run(lambda x: (x * second + first, second.sum()), x)
    assert [id(each) for each in stage.captured] == [id(second), id(first)] and stage.written == []
    assert result[0].shape == (2,) and result[0].device.type == "xla" and not stage.is_written(x)


def test_writes_are_noticed_also_in_what_is_composed_of_others() -> None:
    norm = torch.nn.BatchNorm1d(2).to("xla").train()
    kept = on_xla(0, 0)
    stage = Tracing()
    x = stage.describe(torch.ones(3, 2).to("xla"))

    def function(x: torch.Tensor) -> torch.Tensor:
        kept[0] = 1
        x.add_(1)
        return norm(x)  # type: ignore[no-any-return]

    stage.run(function, x)
    written = {id(stage.captured[place]) for place in stage.written}
    assert {id(kept), id(norm.running_mean), id(norm.running_var)} <= written and id(norm.weight) not in written
    assert stage.is_written(x) and kept.tolist() == [0, 0] and norm.running_mean.tolist() == [0, 0]


def test_what_lies_where_something_written_lay_before_is_not_written() -> None:
    weights = [on_xla(place) for place in range(50)]

    def function(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            (x * 2).add_(1)
            x = x + weight
        return x

    stage = Tracing()
    stage.run(function, stage.describe(on_xla(1)))
    assert len(stage.captured) == 50 and stage.written == []


def test_slices_and_strides_are_described() -> None:
    stage = Tracing()
    whole = torch.ones(4, 3, 2).to("xla").transpose(1, 2)
    assert stage.describe(whole).stride() == whole.stride()
    assert stage.describe_slice(whole).shape == (2, 3) and stage.describe_slice(whole).stride() == whole[0].stride()


def test_a_read_of_a_value_is_refused_with_its_line() -> None:
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x  # the line

    line = inspect.getsourcelines(reads)[1] + 1
    stage = Tracing()
    with pytest.raises(
        RuntimeError, match=rf"reads a value of a tensor on the host at .*test_closure_captures\.py:{line}"
    ):
        stage.run(reads, stage.describe(on_xla(1)))


def test_other_tensors_are_found_in_the_place_of_those_closed_over() -> None:
    factor = on_xla(2)
    run = with_captured(lambda x: x * factor + factor, [factor], [on_xla(10)])
    assert run(on_xla(3)).tolist() == [40] and (on_xla(3) * factor).tolist() == [6]


@pytest.mark.parametrize("read", [lambda x: x * x.sum().item(), lambda x: x.new_full((2,), x.sum())])
def test_a_number_that_is_read_is_refused_too(read: Any) -> None:
    stage = Tracing()
    with pytest.raises(RuntimeError, match=r"Compute with the tensor instead of `.item\(\)`"):
        stage.run(read, stage.describe(on_xla(1)))


def test_tensors_of_one_memory_are_described_on_one() -> None:
    whole = torch.zeros(4, 3).to("xla")
    row, part, alone = whole[1], whole[2:], on_xla(1)
    stage = Tracing()

    def function(x: torch.Tensor) -> torch.Tensor:
        total = part.sum() + alone
        row.add_(x)
        return total + whole.view(torch.int32).sum() + whole.sum()

    stage.run(function, stage.describe(on_xla(1)))
    assert [id(each) for each in stage.captured] == [id(part), id(alone), id(row), id(whole)]
    assert stage.written == [2, 3]  # nothing wrote to the rows of `part`
    (group,) = stage.groups(stage.written)
    assert [(place.number, place.size, place.offset) for place in group] == [(0, (3,), 3), (1, (4, 3), 0)]


def test_what_is_an_argument_and_closed_over_is_refused_where_a_write_would_be_missed() -> None:
    buffer, apart = torch.zeros(2, 3).to("xla"), torch.zeros(3).to("xla")

    def check(body: Callable[[torch.Tensor], object], tensor: torch.Tensor, is_sliced: bool = False) -> None:
        stage = Tracing()
        given = stage.describe_slice(tensor) if is_sliced else stage.describe(tensor)
        stage.give(given, [stage.memory_of(tensor)], is_sliced)
        stage.run(body, given)
        stage.check_arguments()

    def read_late(x: torch.Tensor) -> torch.Tensor:
        buffer[0].add_(1)
        return x + 1

    def read_early(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        buffer[0].add_(1)
        return x

    for body, tensor, is_sliced in (
        (read_late, buffer, False),
        (read_early, buffer, True),
        (lambda x: x.add_(1) + buffer, buffer, False),
    ):
        with pytest.raises(RuntimeError, match=r"it closes over, and as its argument float32\[.*a `.clone\(\)`"):
            check(body, tensor, is_sliced)
        check(body, apart if tensor is buffer and not is_sliced else torch.zeros(2, 3).to("xla"), is_sliced)
    check(read_early, buffer)
    check(read_late, buffer[1])  # another part of the memory
