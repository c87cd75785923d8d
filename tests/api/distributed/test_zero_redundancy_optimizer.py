"""`ZeroRedundancyOptimizer` steps as the optimizer inside does in one process, and keeps a part of its states."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from tests.support.fleet import fleet_of
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

COUNT = 2
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"max_norm": 0.5},
    "buckets": {"grad_clipping": False, "bucket_cap_mb_all_gather": 1, "bucket_cap_mb_reduce_scatter": 1,
                "use_grad_acc_hook": True, "save_master_weights": True, "lazy_init": True},
}  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, place: int | None, clip: float | None) -> Any:
    found, executions = [], 0
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    for step in range(3):
        x = torch.from_numpy(np.random.default_rng(step).normal(size=(COUNT, 4, 6)).astype(np.float32))
        x = x.reshape(-1, 6) if place is None else x[place].to("xla")
        before = met.counter_value("ExecuteComputation") or 0
        optimizer.zero_grad()
        for part in x.chunk(2):  # two passes a step
            loss = (model(part) - part[:, :3]).square().mean() / 2
            loss.backward()
        if place is None and clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
        if place is not None:
            torch_xla.sync()
            executions = (met.counter_value("ExecuteComputation") or 0) - before
        found.append([p.detach().cpu().clone() for p in model.parameters()])
    return found, executions


def train_divided() -> Any:
    found = []
    for options in OPTIONS.values():
        model = network().to("xla")
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.05, **options)
        weights, executions = train(model, optimizer, xr.global_ordinal(), None)
        state = optimizer.state_dict()
        held = sum(each["exp_avg"].numel() for each in state["base_state"].values())
        again = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1.0, **options)
        again.load_state_dict(state)
        other = again.state_dict()
        same = all(torch.equal(state["base_state"][i]["exp_avg"], other["base_state"][i]["exp_avg"]) for i in range(4))
        found.append(
            (weights, executions, held, same and again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"])
        )
    return found


def norms() -> list[float]:
    """The norm of a gradient of 3s and 4s, one number a process, by which groups it is summed over."""
    found = []
    for options in (
        {"sharding_groups": [[0], [1]]},
        {"sharding_groups": [[0], [1]], "grad_norm_groups": [[0, 1]]},
        {"sharding_groups": [[0, 1]], "grad_norm_groups": [[0, 1]]},
        {"grad_norm_groups": [[0], [1]]},
    ):
        weight = torch.zeros(2, device="xla", requires_grad=True)
        optimizer = ZeroRedundancyOptimizer([weight], torch.optim.SGD, lr=1.0, max_norm=100.0, **options)
        weight.grad = torch.tensor([3.0, 4.0], device="xla")
        optimizer.step()
        assert optimizer.grad_norm is not None
        found.append(round(optimizer.grad_norm.item(), 4))
    return found


@pytest.mark.slow
def test_the_norm_is_summed_over_the_sharding_groups_and_then_over_the_others() -> None:
    # Processes that hold the same part twice count it twice, as in PyTorch/XLA.
    assert fleet_of(COUNT).run(norms, seconds=300) == [[5.0, 7.0711, 7.0711, 5.0]] * COUNT


class Counting(torch.optim.SGD):
    """Keeps a number in its groups, as optimizers do that adapt their rate."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            group["lr"] /= 2
            group["steps"] = group.get("steps", 0) + 1
        return super().step()


def test_what_an_optimizer_writes_into_its_groups_stays() -> None:
    weight = torch.zeros(2, device="xla", requires_grad=True)
    optimizer = ZeroRedundancyOptimizer([weight], Counting, lr=1.0, grad_clipping=False)
    for _ in range(2):
        weight.grad = torch.ones(2, device="xla")
        optimizer.step()
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["steps"]) == (0.25, 2)
    assert weight.tolist() == [-0.75, -0.75]


def test_loaded_master_weights_become_the_parameters() -> None:
    given = torch.tensor([1.0009765625, 2.0], device="xla", requires_grad=True)
    saved = ZeroRedundancyOptimizer([given], torch.optim.SGD, lr=1.0, save_master_weights=True).state_dict()
    other = torch.zeros(2, device="xla", requires_grad=True)
    optimizer = ZeroRedundancyOptimizer([other], torch.optim.SGD, lr=1.0, save_master_weights=True)
    optimizer.load_state_dict(saved)
    assert other.tolist() == given.tolist()


def test_gradients_summed_in_the_optimizers_dtype_keep_it() -> None:
    weight = torch.zeros(1, dtype=torch.bfloat16, device="xla", requires_grad=True)
    optimizer = ZeroRedundancyOptimizer(
        [weight], torch.optim.SGD, lr=1.0, grad_clipping=False, use_grad_acc_hook=True, save_master_weights=True
    )
    for value in (1.0, 2.0**-12):  # their sum is none of bfloat16
        (weight * value).sum().backward()
    optimizer.step()
    assert optimizer.state_dict()["sharded_master_weights"][0].item() == -1 - 2.0**-12
    optimizer.zero_grad()
    optimizer.step()  # gradients of zero: nothing moves
    assert optimizer.grad_norm is None
    assert optimizer.state_dict()["sharded_master_weights"][0].item() == -1 - 2.0**-12


def test_a_step_without_gradients_has_a_norm_of_zero() -> None:
    weight = torch.ones(2, device="xla", requires_grad=True)
    optimizer = ZeroRedundancyOptimizer([weight], torch.optim.SGD, lr=1.0)
    optimizer.step()
    assert optimizer.grad_norm is not None and optimizer.grad_norm.item() == 0
    for call in (optimizer.step, optimizer.allgather_weights_and_update_full_parameter):
        with pytest.raises(ValueError, match=r"sharding_scheme is \[1\]; gradients are summed in one exchange"):
            call(sharding_scheme=[1])


@pytest.mark.slow
def test_it_steps_as_one_process_and_keeps_a_part() -> None:
    answers = fleet_of(COUNT).run(train_divided, seconds=300)
    for index, options in enumerate(OPTIONS.values()):
        model = network()
        expected, _ = train(model, torch.optim.Adam(model.parameters(), lr=0.05), None, options.get("max_norm"))
        for weights, executions, held, is_loaded in (answer[index] for answer in answers):
            for step, each in zip(expected, weights, strict=True):
                for one, other in zip(step, each, strict=True):
                    torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)
            assert executions == 1
            assert held == 3 * 6 + 3 + 2 * 5 + 2  # rows of (5, 6), (5,), (3, 5) and (3,), padded to even numbers
            assert is_loaded


def test_shapes_that_differ_are_refused() -> None:
    optimizer = ZeroRedundancyOptimizer(network().to("xla").parameters(), torch.optim.SGD, lr=0.1)
    other = ZeroRedundancyOptimizer(nn.Linear(2, 2).to("xla").parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match=r"of parameters of shapes \{0: \(2, 2\), 1: \(2,\)\}"):
        optimizer.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match="cannot change after init_zero"):
        optimizer.sharding_groups = [[0]]
