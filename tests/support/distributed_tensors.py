"""`torch.distributed.tensor` on a mesh of four virtual CPU devices: each function is a part of
tests/api/distributed/test_distributed_tensors.py."""

import copy
from collections.abc import Callable

import torch
from torch import nn
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

HOST = torch.arange(32.0).view(8, 4)


def _refused(call: Callable[[], object], words: str) -> None:
    try:
        call()
    except (ValueError, RuntimeError) as error:
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
    _refused(lambda: distribute_tensor(HOST, mesh, [Partial(), Replicate()]), "are Shard(dim) and Replicate()")


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
    mesh = init_device_mesh("xla", (4,), mesh_dim_names=("model",))
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
    assert [list(shard.data.shape) for shard in block.down.weight.local_shards] == [[16, 8]] * 4
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


if __name__ == "__main__":
    xr.use_spmd()
    assert xs is not None
    parts.run_all(globals())
