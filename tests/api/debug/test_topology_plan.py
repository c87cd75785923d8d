"""Plans for machines that are not here, by the real compilers: `torch_xla.debug.plan(step, topology=...)`."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.support.topologies import needs_gpu_compiler, needs_tpu_compiler
from torch_xla._engine.errors import OutOfMemory
from torch_xla._engine.planning.planner import PlannedProgram
from torch_xla.debug import StepPlan, Topology, plan

SIZE, ROWS = 256, 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def training(dtype: torch.dtype = torch.float32) -> Callable[[], None]:
    with torch.device("xla"):
        model = nn.Sequential(Block(), Block()).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        model(torch.randn(ROWS, SIZE, device="xla", dtype=dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# Of each block two products forward, and twice as many backward, but for the gradient of the input of the first.
PRODUCTS = (2 * 2 * 3 - 1) * 2 * ROWS * SIZE * 4 * SIZE


@pytest.fixture(scope="module")
def on_v5e() -> StepPlan:
    torch.ones(1, device="xla").cpu()  # so does JAX with what it logs of a plugin that does not start
    plan(training(), steps=1)  # pytest keeps what PyTorch logs of a first optimizer step, with its tensors
    return plan(training(), topology="v5e:1x1")


@needs_tpu_compiler
def test_memory_and_work_are_the_compilers(on_v5e: StepPlan) -> None:
    assert on_v5e.topology == "v5e:1x1" and on_v5e.devices == 1 and on_v5e.fits is True and not on_v5e.is_virtual
    first, second = on_v5e.programs
    for program in (first, second):
        assert program.work.all_flops == pytest.approx(PRODUCTS, rel=0.01)
        assert program.text.startswith("HloModule") and "T(8,128)" in program.text
    # Parameters and momentum are whole tiles but for the biases, which are divisible by them, too.
    parameters = 4 * sum(each.numel() for each in nn.Sequential(Block(), Block()).parameters())
    assert second.held.parameters == second.held.state == parameters
    # Every input is a parameter or its momentum, or the keys of random numbers.
    assert second.sizes.inputs == pytest.approx(2 * parameters, rel=0.01)
    assert second.donated == 16 and second.sizes.aliased == pytest.approx(2 * parameters, rel=0.01)
    assert second.peak == second.held.all + second.passing + second.sizes.intermediate + second.sizes.code


@needs_tpu_compiler
def test_what_the_chip_has_not_may_be_alive_beside_the_step() -> None:
    elsewhere = torch.ones(4, dtype=torch.complex128, device="xla")
    assert plan(made_of_nothing, topology="v5e:1x1", steps=1).programs[0].held.others > elsewhere.nbytes


def made_of_nothing() -> torch.Tensor:
    rows = torch.arange(64.0, device="xla").view(8, 8)
    return rows @ rows.t()


@pytest.mark.parametrize("topology", [
    pytest.param("v5e:1x1", marks=needs_tpu_compiler), pytest.param("v5e:2x2", marks=needs_tpu_compiler),
    pytest.param("h100:4", marks=needs_gpu_compiler),
])  # fmt: skip
def test_a_step_without_inputs_is_compiled_for_the_devices_that_are_meant(topology: str) -> None:
    planned = plan(made_of_nothing, topology=topology, steps=1)
    (program,) = planned.programs
    assert ("T(8,128)" in program.text) == ("v5e" in topology)
    assert ("force_earliest_schedule" in program.text) == ("h100" in topology)  # of a GPU program
    assert (f"num_partitions={planned.devices}" in program.text) == (planned.devices > 1)


@needs_tpu_compiler
def test_cycles_are_of_lines_and_modules(on_v5e: StepPlan) -> None:
    program = on_v5e.programs[1]
    assert program.cycles.all == sum(program.cycles.by_line.values()) == sum(program.cycles.by_module.values()) > 0
    assert {"Sequential/0/up", "Sequential/1/down"} <= set(program.cycles.by_module)
    assert any(line is not None and line[0] == __file__ for line in program.cycles.by_line)
    seconds = on_v5e.seconds(program)
    assert seconds is not None and seconds.computing == program.cycles.all / 1.5e9
    assert "cycles by its compiler" in str(on_v5e) and "of results over 16 inputs" in str(on_v5e)


@needs_tpu_compiler
def test_the_compiler_leaves_the_standard_error_alone(capfd: pytest.CaptureFixture[str]) -> None:
    plan(training(torch.bfloat16), topology="v6e:1x1", steps=1)
    assert capfd.readouterr() == ("", "")


@needs_tpu_compiler
def test_small_trailing_dimensions_take_whole_tiles() -> None:
    narrow = torch.ones(64, 3, 7, 7, device="xla")

    def step() -> torch.Tensor:
        return narrow * 2

    program = plan(step, topology="v5e:1x1", steps=1).programs[0]
    assert program.sizes.inputs > 2 * 4 * narrow.numel()
    (held,) = [each for each in program.largest if each.what == "held"]
    assert held.bytes == program.sizes.inputs


@needs_tpu_compiler
def test_a_step_that_is_too_large_is_planned_and_blamed() -> None:
    with torch.device("xla"):
        large = torch.empty(32_000, 100_000).normal_()

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        return large * 2, large.sin()

    found = plan(step, topology="v5e:1x1", steps=1)
    assert found.fits is False and found.peak > found.memory == int(15.75 * 2**30)  # type: ignore[operator]
    assert "DOES NOT FIT" in str(found)
    assert max(each.bytes for each in found.largest.largest) >= 12.8e9


@needs_tpu_compiler
def test_one_value_that_is_larger_than_the_chip_is_named() -> None:
    with torch.device("xla"):
        large = torch.empty(50_000, 100_000).normal_()
    with pytest.raises(
        OutOfMemory, match=r"one value needs 20.02 GB .* has 17.18 GB.*f32\[50000,100000\]. .*Divide it"
    ):
        plan(lambda: large * 2, topology="v5e:1x1", steps=1)


class Divided:
    """A step of two blocks whose weights are divided along one axis and whose rows along another."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.mesh = xs.Mesh(np.arange(shape[0] * shape[1]), shape, ("data", "model"))

    def __call__(self) -> nn.Module:
        model = nn.Sequential(Block(), Block()).to("xla")
        for block in model:
            xs.mark_sharding(block.up.weight, self.mesh, ("model", None))
            xs.mark_sharding(block.down.weight, self.mesh, (None, "model"))
        x = torch.randn(ROWS, SIZE, device="xla")
        xs.mark_sharding(x, self.mesh, ("data", None))
        model(x).square().mean().backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)  # type: ignore[arg-type]
        return model


def axes(program: PlannedProgram) -> set[tuple[str, str]]:
    return {(each.kind, each.axes) for each in program.work.collectives}


@needs_tpu_compiler
def test_collectives_travel_along_axes_of_the_users_mesh() -> None:
    found = plan(Divided((2, 2)), topology="v5e:2x2", steps=1)
    (program,) = found.programs
    assert found.devices == 4 and program.work.all_flops == pytest.approx(PRODUCTS / 4, rel=0.01)
    assert {("all-reduce", "data"), ("all-reduce", "model")} <= axes(program)
    assert "all-reduce among 2 along data" in str(found)


@needs_tpu_compiler
def test_two_slices() -> None:
    by_name = plan(Divided((4, 2)), topology="2*v5e:2x2", steps=1)
    by_class = plan(Divided((4, 2)), topology=Topology("v5e:2x2", slices=2), steps=1)
    assert by_name.devices == by_class.devices == 8 and by_name.peak == by_class.peak
    assert by_name.topology == by_class.topology == "2*v5e:2x2"


@needs_tpu_compiler
@pytest.mark.parametrize("topology", ["v5e:4x4", "v5p:2x2x4", "v6e:4x4"])
def test_sixteen_devices(topology: str) -> None:
    (program,) = plan(Divided((8, 2)), topology=topology, steps=1).programs
    assert program.work.all_flops == pytest.approx(PRODUCTS / 16, rel=0.01) and program.cycles.all > 0


@needs_gpu_compiler
@pytest.mark.parametrize(("topology", "name"), [("h100:4", "H100"), ("a100:4", "A100 80GB")])
def test_gpus(topology: str, name: str) -> None:
    found = plan(Divided((2, 2)), topology=topology, steps=1)
    (program,) = found.programs
    assert found.device is not None and found.device.name == name and found.fits is True
    assert program.work.all_flops == pytest.approx(PRODUCTS / 4, rel=0.01) and program.donated == 8
    assert ("all-reduce", "model") in axes(program)


def test_a_plan_of_virtual_devices_says_what_it_is_worth() -> None:
    found = plan(Divided((2, 2)), devices=4, steps=1)
    assert found.is_virtual and "compiled for virtual CPU devices" in str(found) and found.topology == ""


def test_a_topology_says_how_many_devices_there_are() -> None:
    with pytest.raises(ValueError, match="`topology` says how many devices there are; leave out `devices`"):
        plan(lambda: None, topology="v5e:1x1", devices=4)
    with pytest.raises(ValueError, match="expected a kind of chip"):
        plan(lambda: None, topology="9")


@needs_tpu_compiler
def test_everything_is_as_before_after_a_plan() -> None:
    step = training()
    torch.manual_seed(3)
    expected = torch.rand(2, device="xla").tolist()
    torch.manual_seed(3)
    plan(step, topology="v5e:1x1", steps=1)
    assert torch.rand(2, device="xla").tolist() == expected
    step()
    torch_xla.sync()


@needs_tpu_compiler
def test_a_value_that_follows_from_the_program_can_be_read() -> None:
    def step() -> torch.Tensor:
        counts = torch.arange(4, device="xla")
        return torch.ones(int(counts.sum().item()), 3, device="xla") * 2

    assert "f32[6,3]" in plan(step, topology="v5e:1x1", steps=1).programs[-1].text


@needs_tpu_compiler
@needs_gpu_compiler
def test_the_same_step_has_a_plan_of_its_own_for_each_machine() -> None:
    with torch.device("xla"):
        x = torch.ones(64, 256)
    here = plan(lambda: x / 3, steps=1)
    for name, mark in (("h100:1", "f64["), ("v5e:1x1", "T(8,128)"), ("h100:1", "f64["), ("v6e:1x1", "T(8,128)")):
        (program,) = plan(lambda: x / 3, topology=name, steps=1).programs
        assert (mark in program.text) and ("T(8,128)" in program.text) == name.startswith("v")
    assert plan(lambda: x / 3, steps=1).programs[0].text == here.programs[0].text


@needs_tpu_compiler
def test_the_step_of_one_process_among_many() -> None:
    x = torch.ones(64, 256, device="xla")

    def step() -> tuple[torch.Tensor, int]:
        return xm.all_reduce(xm.REDUCE_SUM, x * xr.global_ordinal()), xr.world_size()

    for topology, devices in (("v5e:2x2", 4), ("v5e:4x4", 16), ("v5e:2x2", 4)):
        seen: list[object] = []
        found = plan(lambda seen=seen: seen.append(step()), topology=topology, steps=1, rank=devices - 1)
        (program,) = found.programs
        (sent,) = program.work.collectives
        assert (sent.kind, sent.devices, sent.bytes) == ("all-reduce", devices, x.nbytes)
        assert found.devices == devices and seen[0][1] == devices  # type: ignore[index]
    assert xr.world_size() == 1 and xm.all_reduce(xm.REDUCE_SUM, x).sum().item() == x.numel()


def test_a_rank_is_one_of_a_topologys() -> None:
    with pytest.raises(ValueError, match="`rank` is that of a process among those of a `topology`"):
        plan(lambda: None, rank=0)
    with pytest.raises(ValueError, match="`rank` is that of a process among those of a `topology`"):
        plan(lambda: None, devices=4, rank=0)


@needs_tpu_compiler
def test_a_rank_that_the_topology_has_not() -> None:
    with pytest.raises(ValueError, match="there is no rank 4 among the 4 devices of the topology"):
        plan(lambda: None, topology="v5e:2x2", rank=4)
