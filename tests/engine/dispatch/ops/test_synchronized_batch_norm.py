"""The operators of a synchronized batch norm write running statistics, in every way of running."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.fleet import fleet_of
from tests.support.ways_to_run import WAYS, made_to_run
from torch_xla._engine.compat.names import torch as private
from torch_xla._engine.dispatch.op_schema import WRITES_UNDECLARED

aten = torch.ops.aten
X = torch.randn(8, 3, 2, generator=torch.Generator().manual_seed(0)) * 2 + 1
EPS = 1e-3
# The two processes' rows.
PARTS = (X[:3], X[3:])


def running(device: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([0.1, 0.2, 0.3], dtype=dtype, device=device), torch.ones(3, dtype=dtype, device=device)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
    ],
    ids=str,
)
def test_statistics_of_one_process_are_written_as_on_the_cpu(way: str, dtype: torch.dtype, kept: torch.dtype) -> None:
    def step(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.batch_norm_update_stats(x, mean, var, 0.1)

    found = []
    for device, how in (("cpu", "recorded"), ("xla", way)):
        state = running(device, kept)
        with made_to_run(how, step) as run:
            for scale in (1, 2, 3):
                results = run(X.to(device, dtype) * scale, *state)
        found.append([each.cpu() for each in (*results, *state)])
    theirs, ours = found
    assert [each.dtype for each in ours] == [each.dtype for each in theirs]
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if kept is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, **tolerance)
    assert not torch.equal(ours[2], running("cpu", kept)[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("has_counts", [True, False])
def test_the_union_moves_the_statistics_as_the_whole_batch_does(way: str, has_counts: bool) -> None:
    parts = PARTS if has_counts else (X[:4], X[4:])
    counts: Any = (
        torch.tensor([part.numel() / 3 for part in parts], device="xla") if has_counts else parts[0].numel() // 3
    )
    gather = torch.batch_norm_gather_stats_with_counts if has_counts else torch.batch_norm_gather_stats

    def step(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        first, second = (torch.batch_norm_stats(part.to("xla"), EPS) for part in parts)
        means, invstds = (torch.stack(pair) for pair in zip(first, second, strict=True))
        return gather(x, means, invstds, mean, var, 0.3, EPS, counts)

    ours, theirs = running("xla"), running("cpu")
    with made_to_run(way, step) as run:
        for _ in range(3):
            run(X.to("xla"), *ours)
            torch.native_batch_norm(X, None, None, *theirs, True, 0.3, EPS)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.cpu(), their, rtol=1e-4, atol=1e-5)


def test_statistics_are_written_through_views_and_where_one_of_them_is_missing() -> None:
    for missing in range(3):
        found = []
        for device in ("cpu", "xla"):
            rows = torch.zeros(2, 3, 2, device=device)
            pair = [None if place == missing else rows[place, :, 1] for place in range(2)]
            torch.batch_norm_update_stats(X.to(device), *pair, 0.1)
            found.append(rows.cpu())
        torch.testing.assert_close(found[1], found[0])
        assert found[1].any()


def test_the_out_forms_write_the_statistics_too() -> None:
    state, outs = running("xla"), [torch.empty(0, device="xla") for _ in range(2)]
    theirs = running("cpu")
    results = torch.batch_norm_update_stats(X, *theirs, 0.1)
    aten.batch_norm_update_stats.out(X.to("xla"), *state, 0.1, out0=outs[0], out1=outs[1])
    for our, their in zip((*outs, *state), (*results, *theirs), strict=True):
        torch.testing.assert_close(our.cpu(), their)


def test_a_write_is_done_in_a_graph_whose_results_nobody_uses() -> None:
    def step(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        torch.batch_norm_update_stats(x, mean, var, 1.0)
        return mean * 2

    with made_to_run("openxla", step) as run:
        state = running("xla")
        torch.testing.assert_close(run(X.to("xla"), *state).cpu(), X.mean((0, 2)) * 2)
        torch.testing.assert_close(state[0].cpu(), X.mean((0, 2)))


def test_no_derivative_is_an_error_as_on_the_cpu() -> None:
    for device in ("cpu", "xla"):
        x = X.to(device).requires_grad_()
        mean, _ = torch.batch_norm_update_stats(x, *running(device), 0.1)
        with pytest.raises(RuntimeError, match="derivative for aten::batch_norm_update_stats is not implemented"):
            mean.sum().backward()


# PyTorch's schemas use these names for the state of an operator.
STATE = ("running_", "exp_avg", "momentum_buffer", "state_sum", "noise")
# They read it, or return what it becomes; or run on CUDA alone.
READ_ONLY = ("_functional", "_no_training", "_no_update", "_backward", "cudnn_", "miopen_", "_fused_")
# They are composed of the others.
COMPOSED = {"aten::batch_norm", "aten::_batch_norm_impl_index", "aten::instance_norm"}


def keeps_state(name: str) -> bool:
    base, _, overload = name.partition(".")
    arguments = private.schema_named(base, overload).arguments
    kept = [a for a in arguments if "Tensor" in str(a.type) and a.name.startswith(STATE)]
    return bool(kept) and not any(a.alias_info and a.alias_info.is_write for a in arguments)


def test_every_operator_that_writes_its_state_undeclared_is_known() -> None:
    names = [name for name in private.all_operator_names() if name.startswith("aten::") and keeps_state(name)]
    found = {name for name in names if not any(part in name for part in READ_ONLY)} - COMPOSED
    assert found == set(WRITES_UNDECLARED)


class Network(torch.nn.Module):
    def __init__(self, norm: Callable[[int], torch.nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = torch.nn.Linear(2, 2), norm(3)
        torch.nn.init.uniform_(self.norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(x))


def trained(model: torch.nn.Module, x: torch.Tensor, count: int, way: str = "recorded") -> Any:
    with made_to_run(way, lambda batch: model(batch)) as run:
        for step in range(3):
            model.zero_grad()
            (run(x * (step + 1)).sin().sum() / count).backward()
    gradients = [p.grad.cpu() for p in model.parameters()]
    model.eval()
    kept = [each.cpu() for each in model.buffers()]
    with torch.no_grad():
        return gradients, kept, model(x).cpu()


def synchronized(way: str, wrapped: bool) -> Any:
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")
    rank = dist.get_rank()
    model: torch.nn.Module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(Network(torch.nn.BatchNorm1d)).to("xla")
    if wrapped:
        model = torch.nn.parallel.DistributedDataParallel(model)
    return trained(model, PARTS[rank].to("xla"), 1, way)


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [True, False], ids=["in DDP", "alone"])
@pytest.mark.parametrize("way", WAYS)
def test_a_synchronized_batch_norm_trains_and_evaluates_as_one_process_with_the_whole_batch(
    way: str, wrapped: bool
) -> None:
    expected = trained(Network(torch.nn.BatchNorm1d), X, 1)
    found = fleet_of(2).run(synchronized, way, wrapped)
    for _, kept, _ in found:
        for ours, theirs in zip(kept, expected[1], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat([out for _, _, out in found]), expected[2], rtol=1e-4, atol=1e-4)
    for first, second, whole in zip(found[0][0], found[1][0], expected[0], strict=True):
        total = first * 2 if wrapped else first + second  # DDP takes the mean
        torch.testing.assert_close(total, whole, rtol=1e-3, atol=1e-4)
