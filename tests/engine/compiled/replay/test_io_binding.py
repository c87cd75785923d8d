"""How a replay runs its program: with packs it gives what it gives without them."""

from typing import Any

import jax
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.compile import program_cache
from torch_xla._engine.compile.jax_function import as_function
from torch_xla._engine.compiled.replay.io_binding import (
    BoundProgram,
    Packs,
    flat_spec,
    pack_graph,
    packed,
    unpack_graph,
)
from torch_xla._engine.ir.call_plan import Operand, Plan
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.ir.value_spec import contiguous_stride, spec_of
from torch_xla._engine.ir.verify_graph import verify
from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.runtime.buffers import put

CPU = targets.of_device(jax.devices("cpu")[0])


def spec(*size: int) -> Any:
    return spec_of(size, contiguous_stride(size), torch.float32)


@given(st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=1, max_size=4))
def test_what_is_packed_is_unpacked(sizes: list[list[int]]) -> None:
    specs = [spec(*size) for size in sizes]
    pack, unpack = pack_graph(specs), unpack_graph(specs)
    for graph in (pack, unpack):
        verify(graph)
    assert [pack.specs[slot] for slot in pack.outputs] == [flat_spec(specs)] == list(unpack.inputs)
    assert [unpack.specs[slot] for slot in unpack.outputs] == specs
    assert flat_spec(specs).numel == sum(each.numel for each in specs)


def test_packing_puts_one_behind_the_other() -> None:
    specs = [spec(2), spec(), spec(1, 3)]
    arrays = [np.arange(2.0), np.array(7.0), np.array([[4.0, 5.0, 6.0]])]
    (flat,) = as_function(pack_graph(specs), [], [], [])(*map(jax.numpy.float32, arrays))
    assert flat.tolist() == [0, 1, 7, 4, 5, 6]
    for array, found in zip(arrays, as_function(unpack_graph(specs), [], [], [])(flat), strict=True):
        np.testing.assert_array_equal(found, array)


def plain() -> BoundProgram:
    """Build `a += x; b += x; c = x * 1`: a, b and c have places 0, 1 and 2, c is replaced, and x is place 3."""
    vector = spec(2)
    arguments = ((Operand(0), Operand(1)), {"alpha": 1})
    add = Plan(torch.ops.aten.add.Tensor, arguments, (vector, vector), (), (vector,))
    neg = Plan(torch.ops.aten.neg.default, ((Operand(0),), {}), (vector,), (), (vector,))
    operations = (
        Operation(add, (0, 2), 0, -1, 3, 0),
        Operation(add, (1, 2), 0, -1, 4, 0),
        Operation(neg, (2,), 0, -1, 5, 0),
    )
    graph = Graph((vector,) * 3, operations, (3, 4, 5))
    program = program_cache.program_of(graph, (0, 1), CPU)
    return BoundProgram(program, [0, 1, 3], [(0, 0), (1, 1)], [(2, 2, vector)])


def run(layout: BoundProgram, buffers: list[Any]) -> list[Any]:
    ((results),) = layout.program.start([put(np.float32(each), CPU) for each in buffers], (), None)
    return [np.asarray(each).tolist() for each in results]


def test_a_layout_tells_what_it_reads_writes_and_makes() -> None:
    layout = plain()
    assert layout.donated == (0, 1) and layout.bytes == 24 and layout.rewritten == []
    assert layout.made == [(2, spec(2))] and layout.specs == (spec(2),) * 3


def test_with_packs_the_results_are_the_same() -> None:
    layout = plain()
    assert run(layout, [[1, 2], [3, 4], [10, 20]]) == [[11, 22], [13, 24], [-10, -20]]
    with_packs = packed(layout, Packs([[0, 1]], [[2]]), 4, CPU)
    verify(with_packs.program.graph)
    # The pack of a and b has a place behind all others; x is where it was.
    assert with_packs.inputs == [4, 3] and not with_packs.in_place and not with_packs.elsewhere
    results = run(with_packs, [[1, 2, 3, 4], [10, 20]])
    (kept,), (renewed,) = with_packs.updated, with_packs.replaced
    assert results[kept] == [11, 22, 13, 24] and results[renewed] == [-10, -20]
    assert with_packs.donated == (0,)


def test_what_is_not_packed_keeps_its_place() -> None:
    with_packs = packed(plain(), Packs([[1]], []), 4, CPU)
    verify(with_packs.program.graph)
    assert with_packs.inputs == [4, 0, 3]
    results = run(with_packs, [[3, 4], [1, 2], [10, 20]])
    ((output, into),) = with_packs.in_place
    ((other, place, _),) = with_packs.elsewhere
    assert (into, place) == (1, 2)
    assert results[output] == [11, 22] and results[other] == [-10, -20]
    assert results[with_packs.updated[0]] == [13, 24]
