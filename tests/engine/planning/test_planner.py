"""The memory of a planned step, and its largest values."""

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla._engine import compiler_options
from torch_xla._engine.planning import planner
from torch_xla._engine.planning.planner import Held, Large
from torch_xla._engine.runtime import platform
from torch_xla._engine.runtime.abstract_devices import virtual_devices


def test_bytes_are_added_to_their_kind() -> None:
    held = Held()
    for kind, size in (("state", 3), ("state", 4), (None, 5), ("gradients", 1), ("parameters", 2)):
        held.add(kind, size)
    assert held == Held(parameters=2, state=7, gradients=1, others=5) and held.all == 15


def test_equal_values_come_together_by_their_name_without_numbers() -> None:
    def held(name: str, size: int) -> Large:
        return Large("held", name, "f32[2]", None, 1, size)

    values = [held("layers.0.weight", 8), held("bias", 30), held("layers.11.weight", 8), held("layers.0.bias", 8)]
    found = planner._largest(values)
    assert [(each.name, each.count, each.bytes) for each in found] == [
        ("bias", 1, 30),
        ("layers.*.weight", 2, 16),
        ("layers.0.bias", 1, 8),
    ]
    assert [value.count for value in values] == [1, 1, 1, 1]  # they stay as they were
    # An intermediate value has the name of its operator, in which digits have a meaning.
    convolutions = [Large("intermediate", name, "f32[2]", None, 1, 8) for name in ("aten::conv1d", "aten::conv2d")]
    assert len(planner._largest(convolutions)) == 2 and planner._largest(values, most=1) == found[:1]


def test_programs_are_seen_in_the_order_of_their_first_run_and_not_run() -> None:
    x = torch.ones(4, 4).to("xla")
    with planner.planning(None) as found:
        for number in (1, 2, 1):
            found.step(lambda number=number: x.add_(1) if number == 1 else (x @ x).sum())  # type: ignore[misc]
    assert [(program.operations, program.runs) for program in found.programs] == [(1, 2), (2, 1)]
    assert found.programs[1].work.flops == {"f32": 2 * 4 * 4 * 4}
    assert found.programs[0].line is not None and found.programs[0].line[0] == __file__
    assert x.tolist() == [[1.0] * 4] * 4


def test_the_same_step_on_other_devices_has_a_program_for_these() -> None:
    one, other = virtual_devices(2)
    x = torch.ones(4, 4).to("xla")
    for devices in ((one,), (other,), (one,), None):
        with planner.planning(devices) as found:
            found.step(lambda: x * 3)
        assert found.target is not None
        assert found.target.devices == (devices or tuple(platform.local_devices()[:1]))


def test_a_process_among_others_records_their_collectives() -> None:
    devices = virtual_devices(4)
    x = torch.ones(4, 4).to("xla")
    with planner.planning(devices, rank=2) as found:
        assert (xr.global_ordinal(), xr.world_size(), xr.addressable_device_count()) == (2, 4, 1)
        found.step(lambda: x * 3)
        assert found.target is not None and found.target.devices == (devices[2],)
        found.step(lambda: xm.all_gather(x * 3))
        assert found.target.devices == devices
    (sent,) = found.programs[1].work.collectives
    assert (sent.kind, sent.devices, sent.bytes) == ("all-gather", 4, 4 * x.nbytes)
    assert xr.world_size() == 1 and xm.all_gather(x).shape == x.shape


def test_a_step_that_fails_leaves_the_options_of_the_compiler() -> None:
    before = dict(compiler_options.chosen())
    with pytest.raises(KeyError), planner.planning(2):
        assert dict(compiler_options.chosen()) != before
        raise KeyError
    assert dict(compiler_options.chosen()) == before
    torch_xla.sync()
    assert torch.ones(2, device="xla").tolist() == [1, 1]


def test_the_sizes_of_a_program_that_is_not_compiled() -> None:
    class Silent:
        """A program of a platform that reports nothing."""

        class target:
            platform = "abacus"

        def compiled_for(self, numbers: object) -> bool:
            return False

        def compile_for(self, numbers: object) -> None:
            return None

    with pytest.raises(NotImplementedError, match=r"plan\(\): abacus does not report the memory that a program needs"):
        planner.sizes_of(Silent(), ())  # type: ignore[arg-type]


def test_a_half_made_optimizer_is_no_reason_not_to_plan() -> None:
    class Half(torch.optim.Optimizer):
        def __init__(self) -> None:
            pass

    half = Half()
    x = torch.ones(3).to("xla")
    with planner.planning(None) as found:
        found.step(lambda: x + 1)
    assert len(found.programs) == 1 and half is not None
