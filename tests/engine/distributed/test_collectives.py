"""Collectives of `xm` between processes, held against NumPy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from tests.support.fleet import fleet_of
from torch_xla._engine.distributed import collectives

COUNT = 4


def groupings() -> dict[str, list[list[int]] | None]:
    """Which processes exchange with which; sizes divide the rows of `sample`."""
    ranks = list(range(xr.world_size()))
    found: dict[str, list[list[int]] | None] = {"all": None}
    if len(ranks) % 2 == 0:
        found["halves"] = [ranks[::2], ranks[:0:-2]]
    if len(ranks) > 2:
        few = 2 if len(ranks) > 4 else 1
        found["uneven"] = [[ranks[-few - 1], *ranks[: -few - 1]], ranks[-few:]]
    return found


USUAL = [torch.bool, torch.int64, torch.bfloat16, torch.float32]
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64,
]  # fmt: skip


def sample(rank: int, dtype: torch.dtype = torch.float32, reduction: str = "sum") -> torch.Tensor:
    """Return the input of a process: small integers, so that the order of operations has no effect."""
    numbers = np.random.default_rng(rank).integers(0, 5, (24, 4))
    return torch.from_numpy(1 + numbers % 2 if reduction == "mul" else numbers).to(dtype)


def own_group(groups: list[list[int]] | None) -> list[int]:
    return next(group for group in groups or [list(range(xr.world_size()))] if xr.global_ordinal() in group)


def others(groups: list[list[int]] | None, dtype: torch.dtype, reduction: str = "sum") -> list[torch.Tensor]:
    return [sample(rank, dtype, reduction) for rank in own_group(groups)]


REDUCERS: dict[str, Callable[..., Any]] = {
    "sum": np.add.reduce, "mul": np.multiply.reduce, "min": np.minimum.reduce, "max": np.maximum.reduce,
    "and": np.bitwise_and.reduce, "or": np.bitwise_or.reduce,
}  # fmt: skip


def reduce_everything(dtype: torch.dtype) -> list[str]:
    wrong = []
    asked: list[tuple[str, str, torch.Tensor, torch.Tensor]] = []
    for where, groups in groupings().items():
        for name, reducer in REDUCERS.items():
            if (name in ("and", "or") and (dtype.is_floating_point or dtype.is_complex)) or (
                name in ("min", "max") and dtype.is_complex
            ):
                continue
            wide = dtype if not dtype.is_floating_point else torch.float64
            rows = np.stack([tensor.to(wide).numpy() for tensor in others(groups, dtype, name)])
            expected = torch.from_numpy(np.asarray(reducer(rows, axis=0))).to(dtype)
            mine = sample(xr.global_ordinal(), dtype, name).to("xla")
            asked.append((where, name, xm.all_reduce(name, mine, groups=groups), expected))
    torch_xla.sync()  # all of them in one program
    for where, name, result, expected in asked:
        if not torch.equal(result.cpu(), expected):
            wrong.append(f"{name} {where}: {result.cpu()} instead of {expected}")
    return wrong


@pytest.mark.parametrize("dtype", USUAL)
def test_reductions_are_those_of_numpy(dtype: torch.dtype) -> None:
    assert fleet_of(COUNT).run(reduce_everything, dtype) == [[]] * COUNT


def move_everything(dtype: torch.dtype) -> list[str]:
    wrong: list[str] = []
    asked: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    rank = xr.global_ordinal()
    mine = sample(rank, dtype).to("xla")
    for where, groups in groupings().items():
        group, theirs = own_group(groups), others(groups, dtype)
        place, size = group.index(rank), len(group)
        for dim in (0, 1):
            asked.append((f"gather {where} {dim}", xm.all_gather(mine, dim, groups), torch.cat(theirs, dim)))
        if size > 1 or where == "uneven":
            total = torch.stack(theirs).sum(0).to(dtype)
            scattered = xm.reduce_scatter(xm.REDUCE_SUM, mine, 1.0, 0, size, groups)
            asked.append((f"scatter {where}", scattered, total.chunk(size, 0)[place]))
            moved = xm.all_to_all(mine, 0, 1, size, groups)
            asked.append((f"exchange {where}", moved, torch.cat([each.chunk(size, 0)[place] for each in theirs], 1)))
        copy = mine.clone()
        xm.collective_broadcast([copy], group[size - 1], groups if groups is None else groups)
        expected = sample(group[size - 1] if groups is None else group[_place_of(groups, group[-1], group)], dtype)
        asked.append((f"broadcast {where}", copy, expected))
    count = xr.world_size()
    permuted = xm.collective_permute(mine, [[source, source + 1] for source in range(count - 1)])
    asked.append(("permute", permuted, torch.zeros_like(sample(0, dtype)) if rank == 0 else sample(rank - 1, dtype)))
    three = [mine, mine[:, 1:], mine.t()]
    for index, gathered in enumerate(xm.all_gather(three)):
        rows = [[each, each[:, 1:], each.t()][index] for each in (sample(other, dtype) for other in range(count))]
        asked.append((f"gather of a list {index}", gathered, torch.cat(rows)))
    torch_xla.sync()
    for what, result, expected in asked:
        if not torch.equal(result.cpu(), expected):
            wrong.append(f"{what}: {result.cpu()} instead of {expected}")
    return wrong


def _place_of(groups: list[list[int]], root: int, group: list[int]) -> int:
    return next(each.index(root) for each in groups if root in each)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.complex64])
def test_gathers_and_exchanges_are_those_of_numpy(dtype: torch.dtype) -> None:
    assert fleet_of(COUNT).run(move_everything, dtype) == [[]] * COUNT


def everything() -> list[str]:
    """Return the errors for all dtypes."""
    return [wrong for dtype in DTYPES for wrong in (*reduce_everything(dtype), *move_everything(dtype))]


@pytest.mark.parametrize(
    "count", [*(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3)), pytest.param(4, marks=pytest.mark.exhaustive)]
)
def test_all_of_them_are_those_of_numpy_for_several_numbers_of_processes_and_every_dtype(count: int) -> None:
    assert fleet_of(count, as_users=count == 2).run(everything, seconds=700) == [[]] * count


def reduce_large_ones() -> list[str]:
    """Of arrays that are reduced in parts, which no number of processes divides evenly."""
    wrong = []
    asked: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    for where, groups in groupings().items():
        for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.bool):
            for name in ("sum", "min", "max"):
                brought = [sample(rank, dtype).flatten().repeat(11_003)[:1_048_583] for rank in own_group(groups)]
                rows = torch.stack(brought).to(torch.float64 if dtype.is_floating_point else torch.int64).numpy()
                expected = torch.from_numpy(REDUCERS[name](rows, axis=0)).to(dtype)
                mine = brought[own_group(groups).index(xr.global_ordinal())].to("xla")
                asked.append((f"{name} of {dtype} {where}", xm.all_reduce(name, mine, groups=groups), expected))
    torch_xla.sync()
    for what, result, expected in asked:
        if not torch.equal(result.cpu(), expected):
            wrong.append(what)
    return wrong


@pytest.mark.parametrize(
    "count", [*(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4)), pytest.param(2, marks=pytest.mark.exhaustive)]
)
def test_large_arrays_are_reduced_as_by_numpy(count: int) -> None:
    assert fleet_of(count).run(reduce_large_ones, seconds=700) == [[]] * count


def of_usual_dtypes() -> list[str]:
    """Return the errors for a few dtypes."""
    return [wrong for dtype in USUAL for wrong in (*reduce_everything(dtype), *move_everything(dtype))]


@pytest.mark.slow
def test_all_of_them_are_those_of_numpy_for_eight_processes() -> None:
    assert fleet_of(8).run(of_usual_dtypes, seconds=700) == [[]] * 8


def what_nobody_reads() -> list[float]:
    rank = xr.global_ordinal()
    x = torch.full((3,), float(rank), device="xla")
    ignored = xm.all_reduce(xm.REDUCE_SUM, x)
    if rank % 2:
        del ignored  # some processes look at it, others do not: all must take part
    kept = xm.all_reduce(xm.REDUCE_MAX, x * 2)
    torch_xla.sync()
    if rank % 2 == 0:
        assert ignored.tolist() == [6.0] * 3
    return kept.tolist()


def test_a_collective_that_nobody_reads_runs() -> None:
    assert fleet_of(COUNT).run(what_nobody_reads) == [[6.0] * 3] * COUNT


def in_place_and_into() -> list[Any]:
    rank = xr.global_ordinal()
    gradients = [torch.full((2,), float(rank), device="xla"), torch.full((), 2.0, device="xla")]
    views = torch.zeros(4, device="xla")
    views[1:3] = rank
    xm.all_reduce(xm.REDUCE_SUM, [*gradients, views[1:3]], scale=0.5)
    out = torch.zeros(4, 2, device="xla")
    assert xm.all_gather(gradients[0][:2].reshape(1, 2), output=out) is out
    both = xm.all_gather_bucketized([torch.ones(1, device="xla") * rank, torch.ones(2, device="xla")], bucket_cap_mb=1)
    parts = xm.reduce_scatter_bucketized(xm.REDUCE_SUM, [torch.ones(8, device="xla")] * 2, 0.25, 0, COUNT)
    return [
        [t.tolist() for t in gradients],
        views.tolist(),
        out.tolist(),
        [t.tolist() for t in both],
        [t.tolist() for t in parts],
    ]


def test_lists_are_reduced_in_place_and_outputs_filled() -> None:
    expected = [
        [[3.0, 3.0], 4.0], [0.0, 3.0, 3.0, 0.0], [[3.0, 3.0]] * 4, [[0.0, 1.0, 2.0, 3.0], [1.0] * 8], [[1.0, 1.0]] * 2,
    ]  # fmt: skip
    assert fleet_of(COUNT).run(in_place_and_into) == [expected] * COUNT


def gradients() -> list[Any]:
    rank = float(xr.global_ordinal())
    found = []
    x = torch.tensor([1.0, rank], device="xla", requires_grad=True)
    (xf.all_reduce(xm.REDUCE_SUM, x, scale=0.5) * (rank + 1)).sum().backward()
    found.append(x.grad.tolist())
    v = torch.ones(2, device="xla", requires_grad=True)
    (xm.all_reduce(xm.REDUCE_SUM, v, scale=0.5) * (rank + 1)).sum().backward()
    y = torch.tensor([rank, -rank], device="xla", requires_grad=True)
    (xm.all_reduce(xm.REDUCE_MAX, y) * torch.tensor([1.0, 2.0], device="xla")).sum().backward()
    found.append(y.grad.tolist())
    z = torch.ones(2, device="xla", requires_grad=True)
    (xf.all_gather(z) * torch.arange(8.0, device="xla")).sum().backward()
    found.append(z.grad.tolist())
    w = torch.ones(4, device="xla", requires_grad=True)
    (xm.reduce_scatter(xm.REDUCE_SUM, w, 1.0, 0, COUNT) * rank).sum().backward()
    found.append(w.grad.tolist())
    found.append(v.grad.tolist())
    u = torch.tensor([rank + 1, -rank], device="xla", requires_grad=True)
    (xf.all_reduce(xm.REDUCE_MAX, u) * 3 * (rank + 1)).sum().backward()
    found.append(u.grad.tolist())
    return found


def test_gradients_flow_through_collectives() -> None:
    for rank, found in enumerate(fleet_of(COUNT).run(gradients)):
        assert found[0] == [0.5 * (rank + 1)] * 2  # of the own result alone, as in PyTorch/XLA
        assert found[1] == [4.0 if rank == 3 else 0.0, 8.0 if rank == 0 else 0.0]
        assert found[2] == [2.0 * rank, 2.0 * rank + 1]
        assert found[3] == [0.0, 1.0, 2.0, 3.0]
        assert found[4] == [5.0, 5.0]  # of the sum of all results: 0.5 * (1 + 2 + 3 + 4)
        assert found[5] == [12.0 if rank == 3 else 0.0, 3.0 if rank == 0 else 0.0]


def train(steps: int) -> tuple[list[float], int, list[float]]:
    torch.manual_seed(xr.global_ordinal())
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to("xla")
    xm.broadcast_master_param(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.from_numpy(np.random.default_rng(7).normal(size=(steps, COUNT, 5, 6)).astype(np.float32))
    losses = []
    executions = 0
    for step in range(steps):
        batch = data[step, xr.global_ordinal()].to("xla")
        before = met.counter_value("ExecuteComputation") or 0
        loss = (model(batch).squeeze(1) - batch.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()
        executions = (met.counter_value("ExecuteComputation") or 0) - before
        losses.append(xm.mesh_reduce("loss", loss.item(), lambda all: sum(all) / len(all)))
    return losses, executions, [p.sum().item() for p in model.parameters()]


def alone(steps: int) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.from_numpy(np.random.default_rng(7).normal(size=(steps, COUNT, 5, 6)).astype(np.float32))
    losses = []
    for step in range(steps):
        batch = data[step].reshape(COUNT * 5, 6)
        loss = (model(batch).squeeze(1) - batch.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_data_parallel_training_is_that_of_one_process_in_one_execution_a_step() -> None:
    found = fleet_of(COUNT).run(train, 5)
    for losses, executions, parameters in found:
        np.testing.assert_allclose(losses, alone(5), rtol=1e-5)
        assert executions == 1
        assert parameters == found[0][2]


def send_and_receive() -> list[float] | None:
    rank = xr.global_ordinal()
    if rank == 1:
        xm.send(torch.tensor([1.5, -0.0], device="xla"), 7)
        torch_xla.sync()
    if rank == 3:
        return xm.recv(torch.zeros(2, device="xla"), 7).tolist()
    return None


def test_a_tensor_goes_from_one_process_to_another() -> None:
    assert fleet_of(COUNT).run(send_and_receive) == [None, None, None, [1.5, -0.0]]


def test_groups_for_some_members_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_xla._engine.processes.identity.process_count", lambda: 4)
    made: dict[tuple[int, ...], Sequence[Sequence[int]]] = {
        (0, 1, 2, 3): (),
        (1, 3): ((1, 3), (0, 2)),
        (0, 1, 2): ((0, 1, 2), (3,)),
        (2,): ((2,), (0,), (1,), (3,)),
    }
    assert {members: collectives.group_with(members) for members in made} == made
