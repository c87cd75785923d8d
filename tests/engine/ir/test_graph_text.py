"""A graph reads as text: shapes, operators, attributes, the user's lines, and which values are its results."""

import torch

from torch_xla._engine.ir.call_plan import Number, Operand, Plan
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.ir.graph_text import shape, to_dot, to_text
from torch_xla._engine.ir.value_spec import Spec, contiguous_stride, spec_of
from torch_xla._engine.ir.view.geometry import Geometry

aten = torch.ops.aten


def spec(*size: int, dtype: torch.dtype = torch.float32) -> Spec:
    return spec_of(size, contiguous_stride(size), dtype)


def scaled_maximum() -> Graph:
    """`max(x * 2.5, dim=1)`, both of its results."""
    x, top, where = spec(2, 3), spec(2), spec(2, dtype=torch.int64)
    mul = Plan(aten.mul.Tensor, ((Operand(0), Number(0)), {}), (x,), (float,), (x,))
    maximum = Plan(aten.max.dim, ((Operand(0), 1), {}), (x,), (), (top, where), (-1, -1))
    operations = (Operation(mul, (0,), 0, -1, 1, 0), Operation(maximum, (1,), 1, -1, 2, 2))
    return Graph((x,), operations, (2, 3))


def test_a_graph_is_one_value_or_operation_a_line() -> None:
    assert to_text(scaled_maximum(), numbers=[2.5]) == (
        "IR {\n"
        "  %0 = f32[2,3] xla::device_data()\n"
        "  %1 = f32[2,3] aten::mul(%0), other=2.5\n"
        "  %2 = (f32[2], s64[2]) aten::max(%1), dim=1, ROOT=0:0, ROOT=1:1\n"
        "}\n"
    )


def test_the_example_of_the_documents_has_their_form() -> None:
    number = spec(dtype=torch.int64)
    mul = Plan(aten.mul.Tensor, ((Operand(0), Operand(1)), {}), (number, number), (), (number,))
    graph = Graph((number,), (Operation(mul, (0, 0), 0, -1, 1, 0),), (1,))
    assert to_text(graph) == "IR {\n  %0 = s64[] xla::device_data()\n  %1 = s64[] aten::mul(%0, %0), ROOT=0\n}\n"


def test_each_line_tells_the_line_of_the_program() -> None:
    text = to_text(scaled_maximum(), [2.5], [("train.py", 33, "step"), None])
    assert "aten::mul(%0), other=2.5, location=step@train.py:33\n" in text
    assert "dim=1, ROOT" in text


def test_a_number_that_is_not_known_shows_its_type() -> None:
    assert "other=float" in to_text(scaled_maximum())


def test_one_part_of_several_results_is_read_by_its_number() -> None:
    graph = scaled_maximum()
    top = graph.specs[2]
    neg = Plan(aten.neg.default, ((Operand(0),), {}), (top,), (), (top,))
    longer = Graph(graph.inputs, (*graph.operations, Operation(neg, (2,), 1, -1, 4, 4)), (4,))
    assert "  %3 = f32[2] aten::neg(%2.0), ROOT=0\n" in to_text(longer, [2.5])


def test_lists_of_operands_are_operands_and_lists_of_numbers_attributes() -> None:
    x, both = spec(2, 3), spec(4, 3)
    cat = Plan(aten.cat.default, (([Operand(0), Operand(1)], 0), {}), (x, x), (), (both,))
    total = Plan(aten.sum.dim_IntList, ((Operand(0), [0, 1]), {"dtype": None}), (both,), (), (spec(),))
    graph = Graph((x, x), (Operation(cat, (0, 1), 0, -1, 2, 0), Operation(total, (2,), 0, -1, 3, 3)), (3,))
    text = to_text(graph)
    assert "aten::cat(%0, %1), dim=0\n" in text
    assert "aten::sum(%2), dim=[0, 1], ROOT=0\n" in text


def test_a_read_through_a_view_shows_the_view() -> None:
    base, shown = spec(2, 3), spec(2)
    arguments = (
        Operand(0),
        Geometry((2, 3), (3, 1)),
        Geometry((2,), (3,), 1),
        torch.float32,
        torch.float32,
        False,
        False,
    )
    read = Plan("xla::read_view", (arguments, {}), (base,), (), (shown,))
    text = to_text(Graph((base,), (Operation(read, (0,), 0, -1, 1, 0),), (1,)))
    assert "  %1 = f32[2] xla::read_view(%0), size=(2,), stride=(3,), storage_offset=1, ROOT=0\n" in text


def test_an_order_of_memory_that_is_not_row_major_is_shown() -> None:
    assert shape(spec_of((2, 3), (1, 2), torch.bfloat16)) == "bf16[2,3]{0,1}"
    assert shape(spec_of((2, 3), (3, 1), torch.bool)) == "pred[2,3]"
    assert shape(spec_of((), (), torch.complex64)) == "c64[]"


def test_a_value_that_is_computed_already_can_be_a_result() -> None:
    x = spec(2)
    assert to_text(Graph((x,), (), (0, 0))) == "IR {\n  %0 = f32[2] xla::device_data(), ROOT=0, ROOT=1\n}\n"


def test_a_graph_without_results_is_empty() -> None:
    assert to_text(Graph((), (), ())) == "IR {\n}\n"


def test_the_drawing_has_a_box_for_each_line_and_an_arrow_for_each_operand() -> None:
    assert to_dot(scaled_maximum(), [2.5]) == (
        "digraph G {\n"
        "  node [shape=box]\n"
        '  node0 [label="f32[2,3] xla::device_data"]\n'
        '  node1 [label="aten::mul\\nf32[2,3]\\nother=2.5"]\n'
        "  node0 -> node1\n"
        '  node2 [label="aten::max, ROOT=0:0, ROOT=1:1\\nf32[2], s64[2]\\ndim=1"]\n'
        "  node1 -> node2\n"
        "}\n"
    )
