"""PyTorch's own ways to divide a model: by tensors, in a pipeline; checkpoints for another number of processes."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import torch_xla
import torch_xla.distributed.xla_backend  # noqa: F401  (registers the backend)
import torch_xla.runtime as xr
from tests.support.fleet import fleet_of
from torch_xla._engine.compat import patch_list


def join() -> int:
    """The rank of this process; the first test that runs makes the group."""
    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")
    return dist.get_rank()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def data(step: int, size: int = 4) -> torch.Tensor:
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(step))


def trained(model: nn.Module, steps: range, device: str, max_norm: float | None = None) -> list[Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return [*losses(model, optimizer, steps, device, max_norm), optimizer]


def losses(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, device: str, max_norm: float | None = None
) -> list[Any]:
    found = []
    for step in steps:
        loss = model(data(step).to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if max_norm is not None:
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            found.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        optimizer.step()
        if device == "xla":
            torch_xla.sync()
        found.append(loss.detach())
    return [each.item() for each in found]


def by_tensors() -> Any:
    join()
    mesh = init_device_mesh("xla", (2,), mesh_dim_names=("tp",))
    model = network().to("xla")
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    held = model[0].weight.to_local().shape
    return trained(model, range(3), "xla", max_norm=0.1)[:-1], list(held)


def exchanged_by_tensors() -> Any:
    """Return the messages of each of two divided layers, forward and backward, without and with divided rows."""
    join()
    mesh = init_device_mesh("xla", (2,))
    by_rows = RowwiseParallel(output_layouts=Shard(0))
    plans = {"rows of weights": RowwiseParallel(), "and of the result": by_rows, "columns": ColwiseParallel()}
    counts = {}
    for name, plan in plans.items():
        torch.manual_seed(0)
        layer = parallelize_module(nn.Linear(6, 4).to("xla"), mesh, plan)
        x = data(0).to("xla")
        with CommDebugMode() as seen:
            y = layer(x.chunk(2, -1)[dist.get_rank()] if name != "columns" else x)
            y.sum().backward()
        counts[name] = {str(operator).rpartition(".")[2]: count for operator, count in seen.get_comm_counts().items()}
        torch_xla.sync()
    return counts


class Block(nn.Module):
    """A block of a transformer without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


Losses = list[tuple[float, list[torch.Tensor]]]


def in_whole_graphs(forward: Callable[..., torch.Tensor], model: nn.Module, device: str) -> Losses:
    """Return the losses and gradients of batches of several sizes: the second size gives a graph for any size."""
    found: Losses = []
    for step, size in enumerate((2, 4, 6)):
        model.zero_grad()
        loss = forward(data(step, size * 4).view(size, 4, 6).to(device)).square().mean()
        loss.backward()
        gradients: list[Any] = [parameter.grad for _, parameter in sorted(model.named_parameters())]
        whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in gradients]
        found.append((loss.item(), [gradient.cpu() for gradient in whole]))
    return found


def block() -> Block:
    torch.manual_seed(0)
    return Block()


def compiled_as(plan: str) -> Losses:
    join()
    # Dynamo finds the functions that it has rules for at its first compilation.
    torch.compile(torch.sin, fullgraph=True)(torch.ones(2, device="xla"))
    mesh, model = init_device_mesh("xla", (2,)), block().to("xla")
    if plan == "FSDP2":
        inside = torch.compile(model, fullgraph=True)
        found = in_whole_graphs(fully_shard(inside, mesh=mesh), inside, "xla")
    else:
        plans: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if plan == "sequence parallel":
            rows, whole = Shard(1), Replicate()
            given = PrepareModuleInput(input_layouts=whole, desired_input_layouts=rows, use_local_output=True)
            made = PrepareModuleOutput(output_layouts=rows, desired_output_layouts=whole)
            parallelize_module(parallelize_module(model, mesh, given), mesh, made)
            plans["up"], plans["down"] = ColwiseParallel(input_layouts=rows), RowwiseParallel(output_layouts=rows)
            plans["norm"] = SequenceParallel()
        parallelize_module(model, mesh, plans)
        found = in_whole_graphs(torch.compile(model, fullgraph=True), model, "xla")
    assert not patch_list.from_local.in_force  # PyTorch's own, as for any mesh of processes
    return found


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["tensor parallel", "sequence parallel", "FSDP2"])
def test_divided_modules_are_whole_graphs(plan: str) -> None:
    expected = in_whole_graphs(model := block(), model, "cpu")
    for found in fleet_of(2).run(compiled_as, plan):
        for (loss, gradients), (right, of) in zip(found, expected, strict=True):
            assert loss == pytest.approx(right, rel=1e-5)
            for gradient, one in zip(gradients, of, strict=True):
                torch.testing.assert_close(gradient, one, rtol=1e-4, atol=1e-6)


def deep() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)))


SCHEDULES: dict[str, Any] = {
    "GPipe": ScheduleGPipe, "1F1B": Schedule1F1B, "Interleaved1F1B": ScheduleInterleaved1F1B,
}  # fmt: skip


def in_a_pipeline(name: str) -> Any:
    """Losses and gradients of four layers on two processes, with four parts of a batch."""
    rank, layers = join(), deep()
    counts = 4 if name == "Interleaved1F1B" else 2  # stages; 0 and 2 of four are on the first process
    parts = [layers[4 // counts * index : 4 // counts * (index + 1)] for index in range(counts)]
    stages = [
        PipelineStage(parts[index].to("xla"), index, counts, torch.device("xla"), group=dist.group.WORLD)
        for index in range(rank, counts, 2)
    ]
    schedule = SCHEDULES[name](
        stages if counts == 4 else stages[0], 4, loss_fn=lambda y, target: (y - target).square().mean()
    )
    x, target = data(0).to("xla"), torch.ones(4, 6, device="xla")
    found: list[torch.Tensor] = []
    for _ in range(2):
        for stage in stages:
            stage.submod.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=found)
        torch_xla.sync()
    gradients = [parameter.grad.cpu() for stage in stages for parameter in stage.submod.parameters()]
    return [loss.item() for loss in found], gradients


def sharded(processes: int) -> nn.Module:
    model = network().to("xla")
    return fully_shard(model, mesh=init_device_mesh("xla", (processes,)))


def save(folder: str) -> Any:
    join()
    model = sharded(xr.world_size())
    *found, optimizer = trained(model, range(2), "xla", max_norm=0.1)
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
    return found + losses(model, optimizer, range(2, 4), "xla")


def resume(folder: str) -> Any:
    join()
    model = sharded(xr.world_size())
    nn.init.zeros_(model[0].weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    weights, states = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": states}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    return losses(model, optimizer, range(2, 4), "xla")


def saved_beside_steps(folder: str) -> Any:
    """Return the values of a model when saving began, and the saved values, after it was trained meanwhile."""
    join()
    group = dist.new_group(backend="cpu:gloo,xla:xla")
    model = sharded(2)
    optimizer = trained(model, range(2), "xla")[-1]
    before = [parameter.to_local().tolist() for parameter in model.parameters()]
    written = dcp.async_save({"model": get_model_state_dict(model)}, checkpoint_id=folder, process_group=group)
    losses(model, optimizer, range(2, 4), "xla")
    written.result()
    other = {"model": get_model_state_dict(sharded(2))}
    dcp.load(other, checkpoint_id=folder, process_group=group)
    return before, [value.to_local().tolist() for value in other["model"].values()]


@pytest.mark.slow
def test_a_checkpoint_is_written_beside_the_steps(tmp_path: Path) -> None:
    for before, loaded in fleet_of(2).run(saved_beside_steps, str(tmp_path)):
        assert loaded == before


def divided_flat() -> Any:
    """Losses of a model whose parameters PyTorch's older class divides as flat ones."""
    join()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        return trained(FullyShardedDataParallel(network().to("xla"), use_orig_params=True), range(3), "xla")[:-1]


@pytest.mark.slow
def test_the_older_class_that_divides_trains_as_one_process() -> None:
    expected = trained(network(), range(3), "cpu")[:-1]
    for found in fleet_of(2).run(divided_flat):
        assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_tensors_are_divided() -> None:
    expected = trained(network(), range(3), "cpu", max_norm=0.1)[:-1]
    for found, held in fleet_of(2).run(by_tensors, seconds=300):
        assert found == pytest.approx(expected, rel=1e-4)
        assert held == [4, 6]


@pytest.mark.slow
def test_divided_layers_exchange_results_and_no_weights() -> None:
    for counts in fleet_of(2).run(exchanged_by_tensors):
        assert counts == {
            "rows of weights": {"all_reduce": 1},
            "and of the result": {"reduce_scatter_tensor": 1, "all_gather_into_tensor": 1},
            "columns": {},
        }


def sharded_from_the_host() -> Any:
    """Return the values of a CPU model after it was divided, and its losses."""
    join()
    model = network()
    model.register_buffer("seen", torch.ones(2))
    fully_shard(model[0], mesh=init_device_mesh("xla", (2,)))
    fully_shard(model, mesh=init_device_mesh("xla", (2,)))
    devices = {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}
    return devices, trained(model, range(2), "xla")[:-1]


@pytest.mark.slow
def test_a_model_on_the_host_moves_when_it_is_sharded() -> None:
    expected = trained(network(), range(2), "cpu")[:-1]
    for devices, found in fleet_of(2).run(sharded_from_the_host):
        assert devices == {"xla"}
        assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_stages_are_divided_by_every_schedule(name: str) -> None:
    alone = deep()
    parts = [(alone(x) - 1).square().mean() for x in data(0).chunk(4)]
    (sum(parts) / 4).backward()
    right = [[parameter.grad for parameter in layer.parameters()] for layer in alone]
    first, second = fleet_of(2).run(in_a_pipeline, name, seconds=300)
    assert second[0][-4:] == pytest.approx([part.item() for part in parts], rel=1e-5)
    of = ([0, 2], [1, 3]) if name == "Interleaved1F1B" else ([0, 1], [2, 3])
    for (_, gradients), layers in zip((first, second), of, strict=True):
        expected = [gradient for layer in layers for gradient in right[layer]]
        for found, gradient in zip(gradients, expected, strict=True):
            torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    expected = trained(copy.deepcopy(network()), range(2), "cpu", max_norm=0.1)
    *before, optimizer = expected
    first = fleet_of(3).run(save, str(tmp_path), seconds=300)
    second = fleet_of(2).run(resume, str(tmp_path), seconds=300)
    for found in first:
        assert found[: len(before)] == pytest.approx(before, rel=1e-4)
    for found in second:
        assert found == pytest.approx(first[0][-2:], rel=1e-4)
