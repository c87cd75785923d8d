"""Parameters of a module that become shards."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from torch_xla._engine.distributed.collective_arguments import AVERAGED
from torch_xla._engine.distributed.fsdp.fsdp_unit import Handle
from torch_xla._engine.distributed.fsdp.module_sharding import divide, materialize
from torch_xla._engine.distributed.fsdp.parameter_shards import ShardLayout
from torch_xla._engine.processes import identity

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)
        self.second.weight = self.first.weight  # tied
        self.frozen = nn.Parameter(torch.arange(3.0), requires_grad=False)


def layouts(count: int) -> Callable[[torch.Size], ShardLayout]:
    return lambda size: ShardLayout(size, count)


def divided(net: nn.Module, count: int = 2, place: int = 1, flatten: bool = False) -> list[Handle]:
    return divide(net, net, CPU, layouts(count), place, flatten)


def test_each_parameter_is_a_shard_wherever_it_stands() -> None:
    net = Net()
    weight, bias = net.first.weight.detach().clone(), net.second.bias.detach().clone()
    handles = divided(net)
    assert [handle.pieces[0].names for handle in handles] == [
        *(("frozen",), ("first.weight", "second.weight"), ("first.bias",), ("second.bias",)),
    ]
    assert net.first.weight is net.second.weight and net.first.weight.tolist() == weight.reshape(-1)[3:].tolist()
    assert net.second.bias.tolist() == bias[1:].tolist() and net.frozen.tolist() == [2, 0]
    assert net.first.weight.requires_grad and not net.frozen.requires_grad
    assert divided(net) == []  # nothing is left


def test_flat_parameters_hold_those_of_one_kind() -> None:
    net = Net()
    whole = torch.cat([each.detach().reshape(-1) for each in (net.first.weight, net.first.bias, net.second.bias)])
    handles = divided(net, place=0, flatten=True)
    by_size = {handle.layout.size: handle for handle in handles}
    flat = by_size[torch.Size([10])]
    assert len(handles) == 2 and [piece.offset for piece in flat.pieces] == [0, 6, 8]
    assert [piece.size for piece in flat.pieces] == [(2, 3), (2,), (2,)]
    assert flat.shard.tolist() == whole[:5].tolist() and not by_size[torch.Size([3])].shard.requires_grad
    assert {name for name, _ in net.named_parameters()} == {"flat_param_0", "flat_param_1"}


def test_parts_of_all_replicas_have_averaged_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "replica_count", lambda: 2)
    (shard, *_) = [handle.shard for handle in divided(nn.Linear(2, 2))]
    (other, *_) = [handle.shard for handle in divided(nn.Linear(2, 2), count=4)]
    assert hasattr(shard, AVERAGED) and not hasattr(other, AVERAGED)


def test_what_cannot_be_divided_is_refused() -> None:
    net = Net()
    divided(net.first)
    with pytest.raises(ValueError, match="parameter second.weight is shared with a submodule that is wrapped"):
        divided(net)
    with pytest.raises(ValueError, match="is on the meta device and has no values to divide"):
        divided(nn.Linear(2, 2, device="meta"))


def test_modules_without_memory_get_values() -> None:
    net = nn.Sequential(nn.Linear(2, 2, device="meta"), nn.LayerNorm(2, device="meta"), nn.Linear(1, 1))
    kept = net[2].weight
    materialize(net, CPU, None)
    assert (
        not any(each.is_meta for each in net.parameters())
        and net[1].weight.tolist() == [1, 1]
        and net[2].weight is kept
    )
    calls = []
    materialize(nn.Linear(2, 2, device="meta"), CPU, lambda module: calls.append(module))
    assert len(calls) == 1
    silent = nn.Module()
    silent.weight = nn.Parameter(torch.empty(2, device="meta"))
    with pytest.raises(ValueError, match=r"Module is on the meta device and has no reset_parameters\(\)"):
        materialize(silent, CPU, None)
