"""Automatic layouts: the mesh, the programs that justify a search, and the positions of inputs."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla
from torch_xla._engine.compile.executable_key import key_of
from torch_xla._engine.compile.program import Program
from torch_xla._engine.ir.value_spec import Spec, contiguous_stride, spec_of
from torch_xla._engine.planning.sharding_search import automatic
from torch_xla._engine.planning.sharding_search.input_roles import Role, RoleKind
from torch_xla._engine.runtime import abstract_devices, device_assignment
from torch_xla._engine.step.pending_graph import graph_of
from torch_xla._engine.tensor.device import current_index, device_at


@settings(max_examples=40)
@given(st.integers(1, 2000))
def test_a_mesh_is_as_nearly_a_square_as_can_be(devices: int) -> None:
    shape = automatic.mesh_shape_for(devices)
    assert math.prod(shape) == devices and list(shape) == sorted(shape, reverse=True) and len(shape) <= 2
    between = range(shape[-1] + 1, math.isqrt(devices) + 1) if len(shape) == 2 else range(2, math.isqrt(devices) + 1)
    assert not any(devices % side == 0 for side in between)


def program(result: torch.Tensor) -> Program:
    found = graph_of([result])
    return Program(found.graph, key_of(found.graph, (), found.device.target))


@pytest.mark.slow
def test_programs_with_products_are_worth_a_search() -> None:
    x = torch.ones(1, 4, 4).to("xla")
    heads = x[None]
    for product in (
        *(x @ x, torch.nn.functional.linear(x, x[0]), torch.nn.functional.conv1d(x, x)),
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads),
    ):
        assert automatic.multiplies(program(product))
    assert not automatic.multiplies(program((x * x).sum().exp()))


def test_the_places_of_inputs_in_a_tape() -> None:
    torch_xla.sync()
    x, y = torch.ones(2).to("xla"), torch.ones(3).to("xla")
    results = torch.stack([x, x]).max(0).values + 1, y * 2, torch.cat([y, x])
    tape = device_at(current_index()).tape
    places = automatic._places(tape)
    assert len(places) == 2 and len(results) == 3
    for slot, place in places.items():
        assert tape.code[place] is tape.values[slot].spec and isinstance(tape.code[place], Spec)


def batch(*size: int) -> Spec:
    return spec_of(size, contiguous_stride(size), torch.float32)


def test_a_later_batch_is_divided_as_those_that_the_search_knew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "_batches", {(torch.float32, (16,)): (0, 1)})
    shape = (2, 2)
    assert automatic._of_batch(Role(RoleKind.BATCH), batch(8, 16), shape) == (0, 1)
    assert automatic._of_batch(Role(RoleKind.BATCH), batch(6, 16), shape) == ()  # it does not come out even
    assert automatic._of_batch(Role(RoleKind.BATCH), batch(8, 17), shape) == ()
    assert automatic._of_batch(Role(RoleKind.PARAMETER), batch(8, 16), shape) == ()


def test_axes_of_a_mesh_become_a_sharding() -> None:
    devices = device_assignment.of_mesh(abstract_devices.virtual_devices(4))
    assert str(automatic.over(devices, (2, 2), ((1,), (0,)))) == "[1, 0]"
    whole = automatic.over(devices, (4,), ((), (0,)))
    assert whole is not None and whole.dims == ((), (0, 1))
    assert automatic.over(devices, (2, 2), ((), ())) is None


def test_kinds_of_batches_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "_batches", {})
    group = SimpleNamespace(members=[0], is_batch=True)
    found: Any = SimpleNamespace(groups=[group], dims=[((0, 1),)], mesh_shape=(2, 2))
    place: Any = None
    for width in range(2 * automatic._MOST_BATCHES):
        automatic._remember(found, [Role(RoleKind.BATCH)], [batch(8, width)], place)
    assert len(automatic._batches) <= automatic._MOST_BATCHES
    assert automatic._of_batch(Role(RoleKind.BATCH), batch(8, width), (2, 2)) == (0, 1)
