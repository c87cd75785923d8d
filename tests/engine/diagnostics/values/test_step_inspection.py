"""The inputs and results of a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from torch_xla._engine.diagnostics.values import step_inspection
from torch_xla._engine.diagnostics.values.step_inspection import Run, any_of, inspecting, is_inexact
from torch_xla._engine.metrics.observers import observers


def test_each_run_is_shown_with_its_values() -> None:
    # Of a form that no other test has: a tape that walks a known path is given the lines of who walked there first.
    x = torch.arange(3.0).view(1, 1, 3, 1, 1).to("xla")
    runs: list[Run] = []
    before = x * 7  # run before the block
    with inspecting(runs.append):
        y = x * 2.5 + 1
        torch_xla.sync()
        z = y.sum()
    assert len(runs) == 2 and observers.inspect_step is None and before.ravel().tolist() == [0, 7, 14]
    first, second = runs
    np.testing.assert_array_equal(np.ravel(first.inputs[0]), [0, 1, 2])
    np.testing.assert_array_equal(np.ravel(first.outputs[0]), [1, 3.5, 6])
    assert [str(operation.plan.op) for operation in first.graph.operations] == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert all(line is not None and line[0] == __file__ for line in first.lines) and first.keys is None
    assert float(second.outputs[0]) == 10.5 == z.item()


def test_what_a_program_gives_away_is_copied_before() -> None:
    x = torch.arange(4.0).to("xla")
    torch_xla.sync()
    runs: list[Run] = []
    with inspecting(runs.append):
        x.add_(1)
    assert runs[0].program.donated and not runs[0].inputs[0].is_deleted()
    np.testing.assert_array_equal(runs[0].inputs[0], [0, 1, 2, 3])
    assert x.tolist() == [1, 2, 3, 4]


def test_random_steps_come_with_their_keys() -> None:
    runs: list[Run] = []
    with inspecting(runs.append):
        x = torch.rand(3, device="xla")
    assert runs[0].keys is not None and len(runs[0].keys) == 1 and x.shape == (3,)


def test_several_inspectors_share_the_place_and_leave_it_when_a_block_raises() -> None:
    one: list[Run] = []
    other: list[Run] = []
    x = torch.ones(2).to("xla")
    with inspecting(one.append):
        with pytest.raises(KeyError), inspecting(other.append):
            y = x + 1
            torch_xla.sync()
            raise KeyError
        z = x + 2
        torch_xla.sync()
    assert (len(one), len(other)) == (2, 1) and observers.inspect_step is None and not step_inspection._inspectors
    assert y.tolist() == [2, 2] and z.tolist() == [3, 3]


def test_any_of_asks_what_can_be_asked() -> None:
    arrays = [jnp.array([1.0, jnp.nan]), jnp.array([1, 2]), jnp.zeros(0), jnp.array(1j), jnp.array([True])]
    assert any_of(jax.numpy.isnan, arrays) == [True, False, False, False, False]
    assert [is_inexact(array) for array in arrays] == [True, False, True, True, False]
