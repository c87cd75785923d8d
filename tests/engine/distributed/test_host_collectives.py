"""Tensors in the host's memory pass beside the device: here between two threads."""

import datetime
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from torch_xla._engine.compat.names import torch_distributed
from torch_xla._engine.distributed import host_collectives
from torch_xla._engine.distributed.host_collectives import HostGroup, or_here
from torch_xla._engine.errors import PeerError
from torch_xla._engine.processes import heartbeats
from torch_xla._engine.processes.identity import Place


class Group:
    """Two collectives, which say that they ran on the device."""

    def __init__(self, host: Any) -> None:
        self.host = host

    @or_here
    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        return "device"

    @or_here
    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        return "device"


def pair(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    store, found = dist.HashStore(), []
    for rank in (0, 1):
        monkeypatch.setattr(host_collectives, "_times", {})  # each process counts for itself
        found.append(Group(HostGroup(store, rank, [0, 1], datetime.timedelta(seconds=60))))
    return found


def test_what_lies_on_the_host_passes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.tensor([1.0 + rank]) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as threads:
        works = list(threads.map(lambda group, tensor: group.allreduce([tensor]), pair(monkeypatch), tensors))
        list(threads.map(lambda work: work.wait(), works))
    assert [tensor.tolist() for tensor in tensors] == [[3.0], [3.0]]


@pytest.mark.parametrize("collective", ["allreduce", "broadcast"])
def test_a_view_with_gaps_passes_with_its_own_elements(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matrices = [torch.arange(6.0).view(2, 3) * (rank + 1) for rank in (0, 1)]
    views = [matrices[0][:, :2], matrices[1].t()[:2].t()]
    with ThreadPoolExecutor(2) as threads:
        works = list(threads.map(lambda group, view: getattr(group, collective)([view]), pair(monkeypatch), views))
        list(threads.map(lambda work: work.wait(), works))
    factors = [3, 3] if collective == "allreduce" else [1, 1]
    for matrix, factor, rest in zip(matrices, factors, (1, 2), strict=True):
        assert matrix.tolist() == [[0, factor, 2 * rest], [3 * factor, 4 * factor, 5 * rest]]


def test_the_rest_goes_over_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    group, _ = pair(monkeypatch)
    options = dist.AllreduceOptions()  # type: ignore[attr-defined]
    options.reduceOp = dist.ReduceOp.AVG
    assert group.allreduce([torch.ones(1, device="xla")]) == "device"
    assert group.allreduce([torch.ones(1), torch.ones(1, device="xla")]) == "device"
    assert group.allreduce([torch.ones(1)], options) == "device"  # Gloo has no mean
    options.reduceOp = dist._make_nccl_premul_sum(0.5)  # type: ignore[attr-defined]
    assert group.allreduce([torch.ones(1)], options) == "device"  # nor factors
    assert group.broadcast([torch.ones(1, dtype=torch.complex64)]) == "device"
    assert group.broadcast([]) == "device"
    assert Group(HostGroup(None, 0, [0, 1], None)).broadcast([torch.ones(1)]) == "device"
    assert Group(HostGroup(dist.HashStore(), 0, [0], None)).broadcast([torch.ones(1)]) == "device"


def test_groups_of_one_store_have_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_collectives, "_times", {})
    store = dist.HashStore()
    for members, name in (([0, 1], "0-1/1"), ([0, 1], "0-1/2"), ([0, 2], "0-2/1")):
        found = HostGroup(store, 0, members, None)._store
        assert found is not None
        found.set("key", name)
        assert store.get(f"torch_xla/host/{name}/key") == name.encode()


class Watch:
    """The state of the other processes: process 3 has ended."""

    place = Place(2, 4)
    fault = ""

    def ended(self) -> list[int]:
        return [3]

    def declare(self, fault: str) -> None:
        self.fault = fault

    def error(self) -> PeerError:
        return PeerError(self.fault)


def test_who_ended_or_does_not_come_to_connect_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_collectives, "_LOOK", 0.1)
    late = Group(HostGroup(dist.HashStore(), 0, [2, 3], datetime.timedelta(seconds=0.2)))
    with pytest.raises(PeerError, match=r"^Process 2 waited 0 s in a collective of objects .* for process 3, which"):
        late.broadcast([torch.ones(1)])
    monkeypatch.setattr(heartbeats, "current", Watch())
    group = Group(HostGroup(dist.HashStore(), 0, [2, 3], datetime.timedelta(minutes=30)))
    with pytest.raises(PeerError, match="^Process 3 of 4 ended without a collective of objects or tensors"):
        group.broadcast([torch.ones(1)])


@pytest.fixture
def failing_tries(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """In how many tries Gloo fails in the second process, while the first one believes itself connected."""
    tries, made, connect = [0], dict.fromkeys((0, 1), 0), torch_distributed.gloo

    def gloo(store: object, rank: int, *rest: Any) -> object:
        made[rank] += 1
        if made[rank] > tries[0]:
            return connect(store, rank, *rest)
        if rank == 1:
            raise RuntimeError("Gloo connectFullMesh failed")
        return object()

    monkeypatch.setattr(torch_distributed, "gloo", gloo)
    yield tries


def test_where_gloo_does_not_connect_one_process_all_try_again(
    failing_tries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_tries[0] = 2
    tensors = [torch.tensor([1.0 + rank]) for rank in (0, 1)]
    groups = pair(monkeypatch)
    with ThreadPoolExecutor(2) as threads:
        works = list(threads.map(lambda group, tensor: group.allreduce([tensor]), groups, tensors))
        list(threads.map(lambda work: work.wait(), works))
    assert [tensor.tolist() for tensor in tensors] == [[3.0], [3.0]]
    assert [group.host.connection().options._timeout for group in groups] == [datetime.timedelta(seconds=60)] * 2


def test_processes_that_gloo_never_connects_all_raise(
    failing_tries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_tries[0] = 3
    with ThreadPoolExecutor(2) as threads:
        tried = [threads.submit(group.allreduce, [torch.ones(1)]) for group in pair(monkeypatch)]
    for each in tried:
        with pytest.raises(PeerError, match=r"in 3 tries of 30 s. Process 1: Gloo connectFullMesh failed"):
            each.result()
