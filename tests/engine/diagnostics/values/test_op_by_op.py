"""A graph run one operator at a time returns the same results, and drops values after their last use."""

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.support.topologies import needs_tpu_compiler
from torch_xla._engine.diagnostics.values import op_by_op
from torch_xla._engine.ir.graph import Graph
from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.runtime import topologies
from torch_xla._engine.step.pending_graph import graph_of
from torch_xla._engine.tensor.device import current_index, device_at
from torch_xla._engine.tensor.random_state import keys_of

X = torch.tensor([[1.0, -2.0], [3.0, 0.5]])


def walked(graph: Graph, numbers: Any, keys: Any = None) -> list[op_by_op.Stop]:
    inputs = [jnp.asarray(X.numpy()) for _ in graph.inputs]
    return list(op_by_op.walk(graph, inputs, numbers, keys, device_at(current_index()).target))


def test_every_operator_reads_what_those_before_it_gave() -> None:
    x = X.to("xla")
    found = graph_of([(x * 2.5).exp().sum(0, keepdim=True) + x])
    stops = walked(found.graph, found.numbers)
    expected = [X * 2.5, (X * 2.5).exp(), (X * 2.5).exp().sum(0, keepdim=True)]
    expected.append(expected[-1] + X)
    assert [stop.number for stop in stops] == [0, 1, 2, 3] and stops[0].numbers == (2.5,)
    for stop, each in zip(stops, expected, strict=True):
        np.testing.assert_allclose(np.asarray(stop.results[0]), each.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(stops[3].operands[0]), np.asarray(stops[2].results[0]))


def test_draws_are_those_of_the_step() -> None:
    device = device_at(current_index())
    x = torch.rand(3, device="xla")
    tape = device.tape
    keys = keys_of([tape.draws[-1]])
    found = graph_of([x])
    stops = walked(found.graph, found.numbers, keys)
    assert [stop.key is not None for stop in stops] == [bool(each.plan.draws) for each in found.graph.operations]
    np.testing.assert_array_equal(np.asarray(stops[-1].results[0]), x.cpu().numpy())


def test_a_slot_is_left_behind_by_its_last_reader() -> None:
    x = X.to("xla")
    y = x + 1
    graph = graph_of([(y * y).exp(), y]).graph
    assert op_by_op._last_reads(graph) == [[0], [1], [2, 3]]
    unread = torch.ones(3, 2).to("xla").max(0)
    assert op_by_op._last_reads(graph_of([unread[0]]).graph)[-1][-2:] == [1, 2]


def test_jaxs_settings_are_its_own_between_two_operators() -> None:
    x = X.to("xla")
    found = graph_of([x.exp().log()])
    before = jax.config.jax_enable_x64, jax.config.jax_default_device
    inputs = [jnp.asarray(X.numpy())]
    for _ in op_by_op.walk(found.graph, inputs, found.numbers, None, device_at(current_index()).target):
        assert (jax.config.jax_enable_x64, jax.config.jax_default_device) == before


def test_numbers_that_are_equal_and_differ_have_programs_of_their_own() -> None:
    x = X.to("xla")
    found = graph_of([x * 0.0, x * -0.0])
    stops = walked(found.graph, found.numbers)
    for stop, number in zip(stops, (0.0, -0.0), strict=True):
        assert torch.equal(torch.signbit(torch.tensor(np.asarray(stop.results[0]))), torch.signbit(X * number))


@needs_tpu_compiler
@pytest.mark.parametrize(("dtype", "refused"), [("float64", False), ("complex128", True)])
def test_operators_alone_are_edited_for_a_tpu_as_steps_are(dtype: str, refused: bool) -> None:
    """Its compiler refuses a quotient of float64, and ends the process for one of complex128."""
    (device,) = topologies.devices_of(topologies.named("v5e:1x1"))
    x = torch.ones(3, 5, dtype=getattr(torch, dtype)).to("xla")
    (operation,) = graph_of([x / x]).graph.operations
    placed = jax.sharding.SingleDeviceSharding(device)
    with jax.enable_x64(True):
        given: Any = [jax.ShapeDtypeStruct((3, 5), np.dtype(dtype), sharding=placed)] * len(operation.operands)
        says = pytest.raises(jax.errors.JaxRuntimeError, match="no complex128") if refused else nullcontext()
        with says:
            op_by_op._compiled(operation.plan, (), given, None, targets.of_device(device))
