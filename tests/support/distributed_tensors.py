"""`torch.distributed.tensor` on a mesh of four virtual CPU devices: each function is a part of
tests/api/distributed/test_distributed_tensors.py."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed import tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.support import parts
from torch_xla._engine.metrics import counters

HOST = torch.arange(32.0).view(8, 4)


def _refused(call: Callable[[], object], words: str) -> None:
    try:
        call()
    except (ValueError, IndexError, RuntimeError) as error:
        assert words in str(error), error
    else:
        raise AssertionError("not refused")


def tensors_are_distributed_and_come_back() -> None:
    mesh = init_device_mesh("xla", (2, 2), mesh_dim_names=("data", "model"))
    for placements, shape in (
        ((Shard(0), Replicate()), [4, 4]),
        ((Shard(0), Shard(1)), [4, 2]),
        ((Shard(0), Shard(0)), [2, 4]),
        ((Replicate(), Replicate()), [8, 4]),
    ):
        t = distribute_tensor(HOST, mesh, placements)
        assert isinstance(t, DTensor) and t.placements == placements and t.device_mesh is mesh
        assert [list(shard.data.shape) for shard in t.local_shards] == [shape] * 4
        assert t.full_tensor().cpu().equal(HOST) and t.to_local().cpu().equal(HOST) and t.shape == (8, 4)
        moved = t.redistribute(placements=(Replicate(), Shard(0)))
        assert moved.placements == (Replicate(), Shard(0)) and moved.sharding_spec.startswith("{devices=[2,1,2]")
    assert distribute_tensor(HOST, mesh).placements == (Replicate(), Replicate())
    again = DTensor.from_local(HOST, mesh, (Shard(0), Replicate()))
    assert again.full_tensor().cpu().equal(HOST) and again.placements == (Shard(0), Replicate())
    _refused(lambda: distribute_tensor(HOST, mesh, [Shard(0)]), "1 placements for a mesh of 2 axes")
    for far in (2, -3):
        words = f"Shard(dim={far}) divides a dimension that a tensor of shape {list(HOST.shape)} does not have"
        _refused(lambda: distribute_tensor(HOST, mesh, [Shard(far), Replicate()]), words)  # noqa: B023
        _refused(lambda: t.redistribute(placements=[Shard(far), Replicate()]), words)  # noqa: B023
    _refused(lambda: t.redistribute(placements=[Partial(), Replicate()]), "only a computation makes a value")
    _refused(lambda: DTensor.from_local(t, mesh), "takes a plain tensor")


def a_sum_that_is_still_to_be_taken_is_the_sum() -> None:
    mesh = init_device_mesh("xla", (2, 2), mesh_dim_names=("data", "model"))
    host = HOST.clone().requires_grad_()
    t = DTensor.from_local(host.to("xla"), mesh, [Partial(), Replicate()])
    assert t.placements == (Partial(), Replicate()) and t.full_tensor().cpu().equal(HOST)
    for placements in ([Shard(0), Replicate()], [Replicate(), Shard(1)]):
        moved = t.redistribute(placements=placements)
        assert moved.placements == tuple(placements) and moved.to_local().cpu().equal(HOST)
    (moved**2).sum().backward()
    assert host.grad is not None and host.grad.equal(2 * HOST)
    assert distribute_tensor(HOST, mesh, [Partial("avg"), Shard(0)]).full_tensor().cpu().equal(HOST)


def parts_of_a_mesh_leave_copies_along_the_rest() -> None:
    mesh = init_device_mesh("xla", (2, 2), mesh_dim_names=("data", "model"))
    model, both = mesh["model"], mesh["data", "model"]._flatten("both")
    assert (mesh.get_rank(), mesh.get_local_rank("model"), mesh.get_coordinate()) == (0, 0, (0, 0))
    for part, shape in ((model, [4, 4]), (mesh["data"], [4, 4]), (both, [2, 4])):
        t = distribute_tensor(HOST, part, [Shard(0)])
        assert t.placements == (Shard(0),) and [list(shard.data.shape) for shard in t.local_shards] == [shape] * 4
        assert t.full_tensor().cpu().equal(HOST)
    first, second = (
        [shard.indices[0].start for shard in distribute_tensor(HOST, mesh[name], [Shard(-2)]).local_shards]
        for name in ("data", "model")
    )
    assert (first, second) == ([0, 0, 4, 4], [0, 4, 0, 4])
    _refused(lambda: mesh.get_group("model"), "one process drives several")


def what_is_computed_is_distributed_too() -> None:
    mesh = init_device_mesh("xla", (2, 2), mesh_dim_names=("data", "model"))
    x = distribute_tensor(HOST.clone().requires_grad_(), mesh, [Shard(0), Replicate()])
    w = distribute_tensor(HOST.t(), mesh, [Replicate(), Shard(1)])
    y, z = (x @ w).relu(), x * 2
    assert isinstance(y, DTensor) and y.device_mesh is mesh
    before = counters.value_of("ExecuteComputation")
    assert z.placements == (Shard(0), Replicate()) and counters.value_of("ExecuteComputation") != before
    y.redistribute(placements=[Replicate(), Replicate()]).sum().backward()
    assert len(y.placements) == 2
    torch_xla.sync()
    assert type(y.full_tensor()) is type(z.to_local()) is torch.Tensor
    assert y.full_tensor().cpu().equal(HOST @ HOST.t())
    assert isinstance(x.grad, DTensor) and x.grad.full_tensor().cpu().equal(HOST.sum(0).expand(8, 4))
    made = tensor.full((8, 4), 2.0, device_mesh=mesh, placements=[Shard(0), Replicate()], requires_grad=True)
    assert made.requires_grad and made.placements == (Shard(0), Replicate()) and made.sum().item() == 64
    assert tensor.rand(8, 4, device_mesh=mesh, placements=[Shard(0), Shard(1)]).shape == (8, 4)
    again = copy.deepcopy(nn.Parameter(w))
    assert isinstance(again, nn.Parameter) and again.placements == (Replicate(), Shard(1))
    assert [list(shard.data.shape) for shard in again.local_shards] == [[4, 4]] * 4


def gradients_pass() -> None:
    mesh = DeviceMesh("xla", list(range(4)))
    t = distribute_tensor(HOST.clone().requires_grad_(), mesh, [Shard(0)])
    (t.redistribute(placements=[Replicate()]).to_local() ** 2).sum().backward()
    assert t.grad is not None and t.grad.cpu().equal(2 * HOST)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.RMSNorm(16), nn.RMSNorm(16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.attention_norm(x)
        q, k, v = (layer(y).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def a_parallel_block_gives_what_the_whole_one_does() -> None:
    for mesh in (
        init_device_mesh("xla", (4,)),
        init_device_mesh("xla", (2, 2), mesh_dim_names=("data", "model"))["model"],
    ):
        _compared(mesh)


def _compared(mesh: DeviceMesh) -> None:
    torch.manual_seed(0)
    host = _Block()
    block = copy.deepcopy(host).to("xla")
    columns, rows = ColwiseParallel(), RowwiseParallel()
    plan = {name: columns for name in ("q", "k", "v", "gate", "up")} | {name: rows for name in ("o", "down")}
    plan["norm"] = SequenceParallel()  # type: ignore[assignment]
    plan["gate"] = ColwiseParallel(input_layouts=Shard(1))
    plan["up"] = ColwiseParallel(input_layouts=Shard(1))
    parallelize_module(block, mesh, plan)
    assert isinstance(block.q.weight, DTensor) and block.q.weight.placements == (Shard(0),)
    assert [list(shard.data.shape) for shard in block.down.weight.local_shards] == [[16, 32 // mesh.size()]] * 4
    x = torch.linspace(-1, 1, 2 * 8 * 16).view(2, 8, 16)
    ours, theirs = torch.optim.SGD(block.parameters(), lr=0.1), torch.optim.SGD(host.parameters(), lr=0.1)
    for _ in range(3):
        found, expected = block(x.to("xla")), host(x)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
        for result, optimizer in ((found, ours), (expected, theirs)):
            optimizer.zero_grad()
            result.pow(2).mean().backward()
            optimizer.step()
        torch_xla.sync()


def compiled_modules_train_as_others_do() -> None:
    # Dynamo asks inputs that were computed for their gradients, and hides what PyTorch says to that.
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
    mesh = init_device_mesh("xla", (4,))
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Linear(8, 4))
    ours = copy.deepcopy(host).to("xla")
    parallelize_module(ours, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    compiled: Any = torch.compile(ours, backend="openxla")
    x = torch.linspace(-1, 1, 4 * 8).view(4, 8)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (host, ours)]
    for step in range(4):
        if step == 2:
            before = counters.value_of("UncachedCompile")
        found, expected = compiled(x.to("xla")), host(x)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
        for result, optimizer in zip((expected, found), optimizers, strict=True):
            optimizer.zero_grad()
            result.pow(2).mean().backward()
            optimizer.step()
        torch_xla.sync()
    assert counters.value_of("UncachedCompile") == before
    for one, other in zip(ours.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)
    assert ours[0].weight.placements == (Shard(0),)  # type: ignore[union-attr]


def compiled_functions_tell_sizes_apart() -> None:
    mesh = init_device_mesh("xla", (4,))
    compiled: Any = torch.compile(nn.functional.linear, backend="openxla")
    for inputs, outputs in ((8, 16), (16, 8), (24, 12)):
        x, w = torch.rand(4, inputs), torch.rand(outputs, inputs)
        found = compiled(*(distribute_tensor(each, mesh, [Shard(0)]) for each in (x, w)))
        torch.testing.assert_close(found.cpu(), nn.functional.linear(x, w), rtol=1e-4, atol=1e-5)


def modules_are_distributed() -> None:
    mesh = DeviceMesh("xla", list(range(4)))
    host = nn.Linear(4, 8)

    def shard(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        module.register_parameter("weight", nn.Parameter(distribute_tensor(module.weight, mesh, [Shard(0)])))  # type: ignore[arg-type]

    module = distribute_module(
        copy.deepcopy(host), mesh, shard, output_fn=lambda mod, out, mesh: out.redistribute(placements=[Replicate()])
    )
    assert module.weight.placements == (Shard(0),) and module.bias.placements == (Replicate(),)  # type: ignore[attr-defined]
    result = module(HOST.to("xla"))
    assert result.placements == (Replicate(),)
    torch.testing.assert_close(result.cpu(), host(HOST))
    prepared = parallelize_module(
        copy.deepcopy(host).to("xla"),
        mesh,
        PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate()),
    )
    torch.testing.assert_close(prepared(HOST.to("xla")).cpu(), host(HOST))


def modules_get_functions_of_two_and_three_arguments() -> None:
    mesh = DeviceMesh("xla", list(range(4)))
    host = nn.Linear(4, 8)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        module = distribute_module(
            copy.deepcopy(host),
            mesh,
            input_fn=lambda inputs, mesh: tuple(distribute_tensor(each, mesh, [Shard(0)]) for each in inputs),
            output_fn=lambda out, mesh: out.redistribute(placements=[Shard(1)]),
        )
    assert [each.category for each in warned] == [FutureWarning] * 2
    result = module(HOST)
    assert result.placements == (Shard(1),)
    torch.testing.assert_close(result.cpu(), host(HOST))
    for name in ("input_fn", "output_fn"):
        functions: Any = {name: lambda values: values}
        _refused(
            lambda functions=functions: distribute_module(host, mesh, **functions), f"{name} takes (module, values"
        )


def values_are_redistributed_over_meshes_of_both_kinds() -> None:
    square = xs.Mesh(range(4), (2, 2), ("x", "y"))  # type: ignore[arg-type]
    marked = xs.mark_sharding(HOST.to("xla"), square, ("x", None))
    spec = marked._spec
    assert marked._spec is spec is marked._cached_spec and spec.placements == (Shard(0), Replicate())
    assert tuple(spec.mesh.shape) == (2, 2) and spec.mesh.device_type == "xla"
    assert spec.tensor_meta.shape == HOST.shape and spec.tensor_meta.dtype == HOST.dtype
    for mesh in (square, init_device_mesh("xla", (2, 2))):
        for placements in ([Replicate(), Shard(0)], [Shard(1), Shard(0)], [Shard(-1), Replicate()], [Shard(0)] * 2):
            for is_async in (False, True):
                moved = marked.redistribute(mesh, placements, async_op=is_async)
                expected = tuple(Shard(each.dim % 2) if isinstance(each, Shard) else each for each in placements)
                assert moved.placements == moved._spec.placements == expected
                assert torch.equal(moved.global_tensor.cpu(), HOST)
                assert moved.sharding_spec == distribute_tensor(HOST, moved.device_mesh, expected).sharding_spec  # type: ignore[attr-defined]
        for wrong, error in (
            ([Shard(0)], ValueError),
            ([Shard(2), Replicate()], IndexError),
            ([Shard(0), Shard(-3)], IndexError),
            ([Partial(), Replicate()], NotImplementedError),
        ):
            try:
                marked.redistribute(mesh, wrong)
            except error as refused:
                assert "redistribute()" in str(refused)
            else:
                raise AssertionError(f"{wrong} is not refused")
    assert marked.placements == (Shard(0), Replicate()) and spec is marked._spec
    marked.invalidate_spec_cache()
    assert marked._cached_spec is None and marked._spec is not spec


if __name__ == "__main__":
    xr.use_spmd()
    assert xs is not None
    parts.run_all(globals())
