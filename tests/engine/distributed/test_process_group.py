"""`torch.distributed` on `xla`: what it gives between processes is what its documents say."""

import copy
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d, tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import torch_xla
import torch_xla.debug.metrics as met
from tests.support.fleet import fleet_of
from torch_xla._engine.distributed.process_group import XlaGroup
from torch_xla._internal.c10d_registration import broadcast_xla
from torch_xla.distributed import xla_backend

COUNT = 4


def join() -> int:
    """The rank of this process; the first test that runs makes the group."""
    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")
    return dist.get_rank()


def own(rank: int, size: int = 2) -> torch.Tensor:
    return torch.arange(float(size), device="xla") + 10 * rank


def collectives() -> dict[str, Any]:
    rank = join()
    warnings.simplefilter("ignore", FutureWarning)  # the names of PyTorch 2.13; those before are what programs use
    found: dict[str, Any] = {"group": (rank, dist.get_world_size(), dist.get_backend())}
    found["device"] = str(distributed_c10d._get_pg_default_device())
    for name, op in {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX}.items():
        x = own(rank)
        work = dist.all_reduce(x, op, async_op=True)
        work.wait()
        found[name] = (x.tolist(), work.is_completed())
    rows = [torch.zeros(2, device="xla") for _ in range(COUNT)]
    dist.all_gather(rows, own(rank))
    found["gather"] = [row.tolist() for row in rows]
    whole = torch.zeros(2 * COUNT, device="xla")
    dist.all_gather_into_tensor(whole, own(rank))
    found["into"] = whole.tolist()
    part = torch.zeros(1, device="xla")
    dist.reduce_scatter_tensor(part, own(rank, COUNT))
    found["scattered"] = part.tolist()
    parts = torch.zeros(COUNT, device="xla")
    dist.all_to_all_single(parts, own(rank, COUNT))
    found["exchanged"] = parts.tolist()
    x = own(rank)
    dist.broadcast(x, 2)
    found["broadcast"] = x.tolist()
    x = own(rank)
    dist.reduce(x, 1)
    found["reduced"] = x.tolist()
    given = [own(index) for index in range(COUNT)] if rank == 3 else None
    x = torch.zeros(2, device="xla")
    dist.scatter(x, given, src=3)
    found["sent"] = x.tolist()
    rows = [torch.zeros(2, device="xla") for _ in range(COUNT)] if rank == 1 else []
    dist.gather(own(rank), rows or None, dst=1)
    found["at one"] = [row.tolist() for row in rows]
    for device in (None, torch.device("xla")):
        x, y = own(rank), own(rank, 1)
        with dist._coalescing_manager(device=device, async_ops=True) as together:  # type: ignore[attr-defined]
            dist.all_reduce(x)
            dist.all_reduce(y)
        together.wait()
        found["together", device] = x.tolist(), y.tolist()
    return found


def test_collectives_give_what_they_say() -> None:
    for rank, found in enumerate(fleet_of(COUNT).run(collectives)):
        ranks = range(COUNT)
        assert found == {
            "group": (rank, COUNT, "xla"),
            "device": "xla",
            "sum": ([60.0, 64.0], True),
            "avg": ([15.0, 16.0], True),
            "max": ([30.0, 31.0], True),
            "gather": [[10.0 * r, 10.0 * r + 1] for r in ranks],
            "into": [10.0 * r + i for r in ranks for i in range(2)],
            "scattered": [60.0 + 4 * rank],
            "exchanged": [10.0 * r + rank for r in ranks],
            "broadcast": [20.0, 21.0],
            "reduced": [60.0, 64.0] if rank == 1 else [10.0 * rank, 10.0 * rank + 1],
            "sent": [10.0 * rank, 10.0 * rank + 1],
            "at one": [[10.0 * r, 10.0 * r + 1] for r in ranks] if rank == 1 else [],
            ("together", None): ([60.0, 64.0], [60.0]),
            ("together", torch.device("xla")): ([60.0, 64.0], [60.0]),
        }


def premultiplied() -> dict[str, Any]:
    """Sum what each process multiplied by a factor first, as FSDP2 divides gradients."""
    rank, found = join(), {}
    for name, factor in {"number": 0.25, "tensor": torch.tensor(0.25)}.items():
        op: Any = dist._make_nccl_premul_sum(factor)  # type: ignore[attr-defined]
        x = own(rank)
        dist.all_reduce(x, op)
        part = torch.zeros(1, device="xla")
        dist.reduce_scatter_tensor(part, own(rank, COUNT), op)
        at_one = own(rank)
        dist.reduce(at_one, 1, op)
        found[name] = x.tolist(), part.tolist(), at_one.tolist()
    return found


def test_a_sum_of_multiplied_tensors_is_that_of_nccl() -> None:
    for rank, found in enumerate(fleet_of(COUNT).run(premultiplied)):
        at_one = [15.0, 16.0] if rank == 1 else [10.0 * rank, 10.0 * rank + 1]
        expected = ([15.0, 16.0], [15.0 + rank], at_one)
        assert found == {"number": expected, "tensor": expected}


def test_one_process_multiplies_too_and_refuses_integers() -> None:
    group, op = XlaGroup(0, [0]), dist._make_nccl_premul_sum(0.5)  # type: ignore[attr-defined]
    options = dist.AllreduceOptions()  # type: ignore[attr-defined]
    options.reduceOp = op
    x = torch.tensor([2.0, 4.0], device="xla")
    group.allreduce([x], options)
    assert x.tolist() == [1.0, 2.0]
    scattering = dist.ReduceScatterOptions()  # type: ignore[attr-defined]
    scattering.reduceOp = op
    part = torch.zeros(2, device="xla")
    group._reduce_scatter_base(part, x, scattering)
    assert part.tolist() == [0.5, 1.0]
    with pytest.raises(ValueError, match="PREMUL_SUM multiplies floating-point tensors.*has dtype torch.int64"):
        group.allreduce([torch.ones(1, dtype=torch.int64, device="xla")], options)
    with pytest.raises(ValueError, match="PREMUL_SUM has no factor"):
        group.allreduce([x], SimpleNamespace(reduceOp=dist.ReduceOp.PREMUL_SUM))


def objects_groups_and_messages() -> Any:
    rank = join()
    everyone: list[Any] = [None] * COUNT
    before = met.counter_value("ExecuteComputation")
    dist.all_gather_object(everyone, "x" * rank)
    one = [{"a": 1} if rank == 0 else None]
    dist.broadcast_object_list(one, 0)
    assert met.counter_value("ExecuteComputation") == before  # they pass over the host
    x = own(rank)
    dist.all_reduce(x)
    assert rank or x.tolist() == [60.0, 64.0]  # the others wait for rank 0 on the host, and not with this unrun
    dist.broadcast_object_list(one, 0)
    both = dist.new_group(backend="cpu:gloo,xla:xla")
    assert distributed_c10d._device_capability(both) == ["cpu", "xla"]
    low, high = dist.new_group([0, 1, 2]), dist.new_group([3, 1])
    x = own(rank)
    if rank in (0, 1, 2):
        dist.all_reduce(x, group=low)
    if rank in (1, 3):
        dist.all_reduce(x, group=high)
    message = torch.zeros(2, device="xla")
    if rank == 0:
        dist.send(own(7), 3)
    if rank == 3:
        dist.recv(message, 0)
    around = [torch.zeros(1, device="xla"), torch.zeros(1, device="xla")]
    around_a_ring = [
        dist.P2POp(dist.isend, torch.tensor(10.0 * rank + tag, device="xla"), (rank + 1) % COUNT, tag=tag)
        for tag in (1, 2)
    ]
    around_a_ring += [dist.P2POp(dist.irecv, around[tag - 1], (rank - 1) % COUNT, tag=tag) for tag in (2, 1)]
    works = dist.batch_isend_irecv(around_a_ring)
    assert all(work.wait() for work in works if work is not None)
    assert [each.item() for each in around] == [10.0 * ((rank - 1) % COUNT) + tag for tag in (1, 2)]
    uneven = [torch.zeros(index + 1, device="xla") for index in range(COUNT)]
    dist.all_to_all(uneven, [torch.full((rank + 1,), float(rank), device="xla") for _ in range(COUNT)])
    # Of four sizes some are equal where this process looks, and others where another does.
    sizes = [[1, 1, 1, 1], [1, 2, 3, 1], [1, 1, 1, 1], [1, 0, 1, 2]]
    whole = torch.zeros(sum(each[rank] for each in sizes), device="xla")
    sent = torch.full((sum(sizes[rank]),), float(rank), device="xla")
    dist.all_to_all_single(whole, sent, [each[rank] for each in sizes], sizes[rank])
    assert whole.tolist() == [float(index) for index, each in enumerate(sizes) for _ in range(each[rank])]
    dist.barrier()
    return everyone, one, x.tolist(), message.tolist(), [each.tolist() for each in uneven]


@pytest.mark.slow
def test_objects_groups_and_messages_arrive() -> None:
    for rank, found in enumerate(fleet_of(COUNT).run(objects_groups_and_messages)):
        everyone, one, reduced, message, uneven = found
        assert everyone == ["", "x", "xx", "xxx"]
        assert one == [{"a": 1}]
        assert reduced == [[30.0, 33.0], [60.0, 64.0], [30.0, 33.0], [60.0, 64.0]][rank] or rank == 3
        assert message == ([70.0, 71.0] if rank == 3 else [0.0, 0.0])
        assert uneven == [[float(index)] * (index + 1) for index in range(COUNT)]


def functional_ones() -> Any:
    rank = join()
    world = dist.group.WORLD
    total = functional.all_reduce(own(rank), "sum", world)
    rows = functional.all_gather_tensor(own(rank), 0, world)
    part = functional.reduce_scatter_tensor(own(rank, COUNT), "sum", 0, world)
    here = torch.empty(2 * COUNT, device="xla")
    gather = torch.ops._c10d_functional.all_gather_into_tensor_out
    there = functional.wait_tensor(gather(own(rank), COUNT, world.group_name, out=here))
    assert here.tolist() == there.tolist() == rows.tolist()
    return total.tolist(), rows.tolist(), part.tolist()


def test_functional_collectives() -> None:
    for rank, found in enumerate(fleet_of(COUNT).run(functional_ones)):
        assert found == ([60.0, 64.0], [10.0 * r + i for r in range(COUNT) for i in range(2)], [60.0 + 4 * rank])


def names_of_upstream() -> Any:
    rank = join()
    torch_xla._XLAC._ensure_xla_coordinator_initialized(rank, COUNT)
    with pytest.raises(ValueError, match=rf"this is process {rank} of 4, and not {rank} of 5"):
        torch_xla._XLAC._ensure_xla_coordinator_initialized(rank, COUNT + 1)
    group = xla_backend.new_xla_process_group(pg_options=xla_backend.ProcessGroupXla.Options())
    before = met.counter_value("ExecuteComputation") or 0
    parts = [torch.zeros(2, device="xla"), torch.zeros(1, device="xla")]
    group.reduce_scatter_coalesced(parts, [[own(rank) + to for to in range(COUNT)], [own(rank, 1)] * COUNT])
    rows = [[torch.zeros(2, device="xla"), torch.zeros(1, device="xla")] for _ in range(COUNT)]
    group.allgather_coalesced(rows, [own(rank), own(rank, 1)])
    tensors, work = broadcast_xla([own(rank)], group, 3)
    found = [[part.tolist() for part in parts], [[each.tolist() for each in row] for row in rows], tensors[0].tolist()]
    assert work.is_completed() and (met.counter_value("ExecuteComputation") or 0) > before
    mesh = [[0, 2], [1, 3]]
    mine = mesh[rank % 2]
    pair = xla_backend.new_xla_process_group(mine, pg_options={"xla_pg_options": {"mesh": mesh}})
    x = own(rank)
    if pair is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.all_reduce(x, group=pair)
    return [*found, x.tolist()]


@pytest.mark.slow
def test_names_of_upstream_do_what_they_say() -> None:
    for rank, found in enumerate(fleet_of(COUNT).run(names_of_upstream)):
        parts, rows, sent, reduced = found
        assert parts == [[60.0 + 4 * rank, 64.0 + 4 * rank], [60.0]]
        assert rows == [[[10.0 * r, 10.0 * r + 1], [10.0 * r]] for r in range(COUNT)]
        assert sent == [30.0, 31.0]
        assert reduced == [20.0 + 20 * (rank % 2), 22.0 + 20 * (rank % 2)]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"mesh": [[0]]}, TypeError, "expected pg_options of the form"),
        ({"xla_pg_options": {"spmd": True}}, NotImplementedError, "torch_xla.distributed.spmd.Mesh"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        xla_backend.new_xla_process_group(pg_options=options)


def test_bits_of_floats_are_not_combined() -> None:
    options = dist.ReduceScatterOptions()  # type: ignore[attr-defined]
    options.reduceOp = dist.ReduceOp.BXOR
    x = torch.ones(2, device="xla")
    with pytest.raises(ValueError, match=r"reduction BXOR combines the bits .* has dtype torch\.float32; view it"):
        XlaGroup(0, [0])._reduce_scatter_base(torch.zeros(2, device="xla"), x, options)


@pytest.mark.parametrize("op", [dist.ReduceOp.MIN, dist.ReduceOp.MAX])
def test_complex_numbers_are_not_compared(op: Any) -> None:
    options = dist.ReduceOptions()  # type: ignore[attr-defined]
    options.reduceOp = op
    x = torch.ones(2, dtype=torch.complex64, device="xla")
    with pytest.raises(
        ValueError, match=r"reduction M.. compares numbers, .* torch\.complex64: complex numbers have no"
    ):
        XlaGroup(0, [0]).reduce([x], options)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def batch(step: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(step).normal(size=(COUNT, 5, 6)).astype(np.float32))


def steps_of(model: torch.nn.Module, parts: Callable[[torch.Tensor], torch.Tensor]) -> list[tuple[float, int]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    found = []
    for step in range(4):
        x = parts(batch(step))
        before = met.counter_value("ExecuteComputation") or 0
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        found.append((loss.detach(), (met.counter_value("ExecuteComputation") or 0) - before))
    return [(loss.item(), executions) for loss, executions in found]


def expected_losses() -> list[float]:
    return [loss for loss, _ in steps_of(network(), lambda x: x.reshape(-1, 6))]


def train_ddp(options: dict[str, Any]) -> Any:
    rank = join()
    model = network()
    if rank:
        torch.nn.init.zeros_(model[0].weight)  # DDP takes the weights of rank 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # times are kept for CPU and CUDA only
        wrapped = DistributedDataParallel(model.to("xla"), **options)
        return steps_of(wrapped, lambda x: x[rank].to("xla"))


@pytest.mark.parametrize(
    "options",
    [{"gradient_as_bucket_view": True}, pytest.param({"bucket_cap_mb": 1}, marks=pytest.mark.slow)],
    ids=["views of buckets", "copies"],
)
def test_distributed_data_parallel_trains_as_one_process(options: dict[str, Any]) -> None:
    found = fleet_of(COUNT).run(train_ddp, options)
    mean = np.mean([[loss for loss, _ in losses] for losses in found], axis=0)
    np.testing.assert_allclose(mean, expected_losses(), rtol=1e-4)
    assert [losses[-1][1] for losses in found] == [1] * COUNT


def accumulate() -> Any:
    rank = join()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False).to("xla"))
        with model.no_sync():
            model(own(rank)).sum().backward()
        kept = model.module.weight.grad.tolist()
        model(own(rank)).sum().backward()
    return kept, model.module.weight.grad.tolist()


@pytest.mark.slow
def test_gradients_accumulate_without_an_exchange() -> None:
    for rank, (kept, reduced) in enumerate(fleet_of(COUNT).run(accumulate)):
        assert kept == [[10.0 * rank, 10.0 * rank + 1]]
        assert reduced == [[30.0, 32.0]]  # twice the mean


def broadcast_what_autograd_knows() -> Any:
    """Rank 0's tensor, which has views and is saved for a gradient, is overwritten by itself."""
    rank = join()
    x = own(0, 4).requires_grad_()
    part = list(torch.chunk(x, 2))[1]
    y = part * x[:2]
    dist.broadcast(x.detach(), 0)
    (part.sum() + y.sum()).backward()
    assert x.grad is not None
    return rank, part.tolist(), x.grad.tolist()


@pytest.mark.slow
def test_autograd_is_not_told_of_what_a_collective_writes() -> None:
    for rank, (found, part, gradient) in enumerate(fleet_of(COUNT).run(broadcast_what_autograd_knows)):
        assert found == rank
        assert part == [2.0, 3.0] and gradient == [2.0, 3.0, 1.0, 2.0]


def train_fully_sharded() -> Any:
    rank = join()
    mesh = init_device_mesh("xla", (COUNT,))
    model = network().to("xla")
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    held = sum(p.to_local().numel() for p in model.parameters())
    return steps_of(model, lambda x: x[rank].to("xla")), held


@pytest.mark.slow
def test_fully_shard_trains_as_one_process_and_holds_a_part() -> None:
    found = fleet_of(COUNT).run(train_fully_sharded)
    mean = np.mean([[loss for loss, _ in losses] for losses, _ in found], axis=0)
    np.testing.assert_allclose(mean, expected_losses(), rtol=1e-4)
    assert sum(held for _, held in found) == sum(p.numel() for p in network().parameters())


def tensors_on_a_mesh() -> Any:
    rank = join()
    mesh = init_device_mesh("xla", (2, 2), mesh_dim_names=("dp", "tp"))
    whole = torch.arange(32.0).reshape(8, 4)
    spread = distribute_tensor(copy.copy(whole), mesh, [Shard(0), Shard(1)])
    product = (spread @ spread.t()).redistribute(mesh, [Replicate(), Replicate()])
    coordinates = mesh.get_coordinate(), mesh["tp"].get_local_rank(), dist.get_world_size(mesh.get_group("dp"))
    return rank, coordinates, spread.to_local().tolist(), product.to_local().tolist()


def test_distributed_tensors_on_a_mesh_of_two_dimensions() -> None:
    whole = torch.arange(32.0).reshape(8, 4)
    for rank, coordinates, part, product in fleet_of(COUNT).run(tensors_on_a_mesh):
        row, column = divmod(rank, 2)
        assert coordinates == ((row, column), column, 2)
        assert part == whole[4 * row : 4 * row + 4, 2 * column : 2 * column + 2].tolist()
        assert product == (whole @ whole.t()).tolist()


def drawn() -> Any:
    """A divided tensor of random numbers, twice; what `dropout` leaves of a tensor that is whole in each process."""
    join()
    mesh = init_device_mesh("xla", (COUNT,))
    torch.manual_seed(5)
    found = [tensor.rand(8, 2, device_mesh=mesh, placements=[Shard(0)]).full_tensor().tolist() for _ in range(2)]
    whole = distribute_tensor(torch.ones(64), mesh, [Replicate()])
    return *found, torch.nn.functional.dropout(whole).to_local().tolist()


@pytest.mark.slow
def test_parts_of_distributed_tensors_are_drawn_apart() -> None:
    found = fleet_of(COUNT).run(drawn)
    first, second, left = found[0]
    assert found == [found[0]] * COUNT
    assert len({number for numbers in (first, second) for row in numbers for number in row}) == 32
    assert set(left) == {0.0, 2.0}


class Branches(torch.nn.Module):
    """Rank 0 uses `left`, other ranks use `right`; the third branch is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.nobody, self.all = (torch.nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: torch.Tensor, goes_left: bool) -> torch.Tensor:
        return self.all((self.left if goes_left else self.right)(x))


def train_branches() -> Any:
    rank = join()
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for options in ({"find_unused_parameters": True}, {"static_graph": True}):
            model = DistributedDataParallel(Branches().to("xla"), gradient_as_bucket_view=True, **options)
            executions = []
            for step in range(3):
                model.zero_grad()
                before = met.counter_value("ExecuteComputation") or 0
                with model.no_sync():
                    model(branch_input(rank, 2 * step).to("xla"), rank == 0).square().sum().backward()
                model(branch_input(rank, 2 * step + 1).to("xla"), rank == 0).square().sum().backward()
                torch_xla.sync()
                executions.append((met.counter_value("ExecuteComputation") or 0) - before)
            gradients = {n: None if p.grad is None else p.grad.cpu() for n, p in model.module.named_parameters()}
            found.append((gradients, executions[-1]))
    return found


def branch_input(rank: int, step: int) -> torch.Tensor:
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(10 * rank + step))


@pytest.mark.slow
def test_parameters_that_some_or_none_use_are_found() -> None:
    model = Branches()
    for rank in range(COUNT):
        for step in (4, 5):
            (model(branch_input(rank, step), rank == 0).square().sum() / COUNT).backward()
    for ways in fleet_of(COUNT).run(train_branches, seconds=300):
        for gradients, executions in ways:
            assert executions == 1
            assert gradients["nobody.weight"] is None
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-5)
