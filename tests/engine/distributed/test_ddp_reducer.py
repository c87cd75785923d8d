"""`DistributedDataParallel` where it must learn which parameters a pass used: here with one process."""

import datetime
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_xla._engine.distributed import ddp_reducer, init_process_group
from torch_xla._engine.distributed.process_group import XlaGroup


@pytest.fixture(scope="module", autouse=True)
def group_of_one() -> Iterator[None]:
    init_process_group.register()
    dist.init_process_group("xla", store=dist.HashStore(), rank=0, world_size=1, timeout=datetime.timedelta(seconds=10))
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def test_parameters_that_nobody_used_keep_what_they_have() -> None:
    net = DistributedDataParallel(Net().to("xla"), find_unused_parameters=True)
    assert isinstance(net.reducer, ddp_reducer.UsedParameters)
    for number in (1, 2):
        net(torch.ones(3, 2).to("xla")).sum().backward()
        assert net.module.unused.weight.grad is None
        assert net.module.used.weight.grad.tolist() == [[3.0 * number] * 2]
    assert net.reducer._used == set()


@pytest.mark.slow
def test_a_static_graph_is_looked_at_once() -> None:
    net = DistributedDataParallel(Net().to("xla"), static_graph=True)
    x = torch.ones(3, 2).to("xla")
    net(x).sum().backward()
    assert net.reducer._known == [0]
    with net.no_sync():
        net(x).sum().backward()
    net(x).sum().backward()
    assert net.module.used.weight.grad.tolist() == [[9.0, 9.0]]


def test_a_reducer_is_made_by_keywords_too() -> None:
    parameters = [nn.Parameter(torch.ones(2, device="xla")), nn.Parameter(torch.ones(2, device="xla"))]
    made = dist.Reducer(  # type: ignore[attr-defined]
        params=parameters, bucket_indices=[[0, 1]], per_bucket_size_limits=[1024],
        process_group=dist.group.WORLD, find_unused_parameters=True, gradient_as_bucket_view=True,
    )  # fmt: skip
    loss = (parameters[0] * 3).sum()
    made.prepare_for_backward(loss)
    loss.backward()
    assert parameters[0].grad is not None and parameters[0].grad.tolist() == [3.0, 3.0]
    assert parameters[1].grad is None and made._watches


def test_a_hook_for_buckets_is_refused_where_there_are_none() -> None:
    net = DistributedDataParallel(Net().to("xla"), find_unused_parameters=True)
    with pytest.raises(NotImplementedError, match="a communication hook is called for buckets, of which there are"):
        net.register_comm_hook(None, lambda state, bucket: None)
    plain = DistributedDataParallel(Net().to("xla"))
    assert not plain.reducer._watches
    assert ddp_reducer._check_hook(plain.reducer) is plain.process_group
    assert ddp_reducer._check_hook(None) is None


@pytest.mark.parametrize("kind", ["ALLREDUCE", "FP16_COMPRESS"])
def test_pytorchs_built_in_hooks_reduce(kind: str) -> None:
    net = DistributedDataParallel(nn.Linear(2, 1, bias=False).to("xla"))
    net._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, kind))  # type: ignore[attr-defined]
    net(torch.ones(3, 2).to("xla")).sum().backward()
    assert net.module.weight.grad.tolist() == [[3.0, 3.0]]


def test_others_get_pytorchs_own() -> None:
    parameters = [nn.Parameter(torch.ones(1))]
    with pytest.raises(TypeError):
        dist.Reducer(parameters)  # type: ignore[attr-defined, call-arg]
    with pytest.raises(TypeError):
        dist.Reducer(params=[])  # type: ignore[attr-defined, call-arg]
    assert isinstance(XlaGroup(0, [0]), dist.ProcessGroup)
