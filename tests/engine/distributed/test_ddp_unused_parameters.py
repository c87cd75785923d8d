"""`DistributedDataParallel` where it must learn which parameters a pass used: here with one process."""

import datetime
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_xla._engine.distributed import ddp_unused_parameters, init_process_group
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
    assert isinstance(net.reducer, ddp_unused_parameters.UsedParameters)
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


class Two(Net):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(2, 1, bias=False).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).sum() + self.wide(x.double()).sum()


def test_a_hook_gets_the_gradients_of_all_parameters() -> None:
    seen = []

    def hook(scale: float, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        assert [part.shape for part in bucket.gradients()] == [each.shape for each in bucket.parameters()]
        seen.append((bucket.index(), bucket.is_last(), bucket.buffer().dtype, bucket.buffer().tolist()))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer() * scale)
        return future

    net = DistributedDataParallel(Two().to("xla"), find_unused_parameters=True)
    net.register_comm_hook(10.0, hook)
    net(torch.ones(3, 2).to("xla")).backward()
    assert seen == [(0, False, torch.float32, [3.0, 3.0, 0.0, 0.0]), (1, True, torch.float64, [3.0, 3.0])]
    assert net.module.used.weight.grad.tolist() == net.module.wide.weight.grad.tolist() == [[30.0, 30.0]]
    assert net.module.unused.weight.grad is None


def test_an_error_of_a_hook_reaches_the_backward_pass() -> None:
    def hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        raise ConnectionError("a peer is lost")

    net = DistributedDataParallel(Net().to("xla"), static_graph=True)
    net.register_comm_hook(None, hook)
    with pytest.raises(ConnectionError, match="a peer is lost"):
        net(torch.ones(3, 2).to("xla")).sum().backward()


@pytest.mark.parametrize("finds", [False, True])
@pytest.mark.parametrize("kind", ["ALLREDUCE", "FP16_COMPRESS"])
def test_pytorchs_built_in_hooks_reduce(kind: str, finds: bool) -> None:
    net = DistributedDataParallel(nn.Linear(2, 1, bias=False).to("xla"), find_unused_parameters=finds)
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
