"""Sizes are taken out of a graph and put in again, and nothing else is changed."""

import pytest
import torch

from torch_xla._engine.compile.graph_sizes import Fixed, outline_of, with_sizes
from torch_xla._engine.ir.call_plan import Number, Operand, Plan
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.ir.sharding import Sharding
from torch_xla._engine.ir.value_spec import contiguous_stride, sharded, spec_of
from torch_xla._engine.ir.view.geometry import Geometry


def graph(n: int, op: object = "read", scale: float = 0.5, number: int = 0, fixed: int | None = None) -> Graph:
    before, after = (spec_of(size, contiguous_stride(size), torch.float32) for size in ((2, n), (n, 2)))
    arguments = (Operand(0), Geometry((2, n), (n, 1), n - 1), [n, True, fixed], Number(number)), {"scale": scale}
    plan = Plan(op, arguments, (before,), (int,), (after,))
    return Graph((before,), (Operation(plan, (0,), 0, -1, 1, 0),), (1,))


def test_graphs_that_differ_in_sizes_have_one_outline() -> None:
    small, large = outline_of(graph(5)), outline_of(graph(9))
    assert small.rest == large.rest and hash(small.rest) == hash(large.rest)
    differences = {b - a for a, b in zip(small.sizes, large.sizes, strict=True)}
    assert differences == {0, 4}


@pytest.mark.parametrize("other", [graph(5, "write"), graph(5, scale=0.25), graph(5, scale=-0.5), graph(5, number=1)])
def test_other_differences_are_in_the_outline(other: Graph) -> None:
    assert outline_of(graph(5)).rest != outline_of(other).rest


def test_a_number_of_64_bits_without_sign_is_no_size() -> None:
    one, other = (outline_of(graph(5, fixed=number)) for number in (1 << 63, (1 << 64) - 1))
    assert one.sizes == other.sizes == outline_of(graph(5)).sizes and one.rest != other.rest


def test_other_sizes_give_the_graph_of_these_sizes() -> None:
    made, expected = with_sizes(graph(5), outline_of(graph(9)).sizes), graph(9)
    assert made.specs == expected.specs and made.outputs == expected.outputs
    ours, theirs = made.operations[0].plan, expected.operations[0].plan
    assert ours.arguments == theirs.arguments and ours.outputs == theirs.outputs and ours.numbers == theirs.numbers
    assert with_sizes(graph(5), outline_of(graph(5)).sizes).specs == graph(5).specs


def test_an_operation_that_is_made_for_its_sizes_is_refused_with_others() -> None:
    own = graph(5, ("decomposition", 7))
    assert with_sizes(own, outline_of(own).sizes).operations[0].plan is own.operations[0].plan
    with pytest.raises(Fixed, match="made for its sizes"):
        with_sizes(own, outline_of(graph(9)).sizes)


def test_a_divided_value_is_refused() -> None:
    spec = sharded(spec_of((4,), (1,), torch.float32), Sharding(((0,),)))
    with pytest.raises(Fixed, match="divided"):
        outline_of(Graph((spec,), (), (0,)))
