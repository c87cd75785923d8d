"""The profile of the host: its parts add up, and each mistake shows where it was made."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import torch_xla
import torch_xla.debug as debug
from torch_xla._engine.dispatch.register import torch_patches
from torch_xla._engine.metrics import events


class Slow(nn.Module):
    """Keeps the host busy with something that is no operation."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return x


class Asking(nn.Module):
    """Looks at a value in its forward."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum().item() > -1e9 else -x


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    debug.clear_history()
    before = list(events._listeners)
    yield
    assert events._listeners == before and torch_patches.around_backward == []
    assert not nn.modules.module._global_forward_hooks and not nn.modules.module._global_forward_pre_hooks
    assert not [thread for thread in threading.enumerate() if "watcher" in thread.name]


def trained(model: nn.Module, steps: int = 3) -> debug.HostProfile:
    model = model.to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        loss = model(torch.ones(4, 8).to("xla")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()

    step()
    with debug.host_profile() as profile:
        for _ in range(steps):
            step()
    return profile


def part(profile: debug.HostProfile, name: str) -> debug.Part:
    return next(part for part in profile.program.within() if part.name == name)


def test_the_parts_add_up_to_the_whole() -> None:
    for _ in range(20):  # between two parts, the system may suspend this thread
        profile = trained(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
        parts = profile.recording + profile.starting + profile.compiling + profile.waiting + profile.uploading
        if parts == pytest.approx(profile.seconds, rel=0.1):
            break
    assert parts == pytest.approx(profile.seconds, rel=0.1)
    assert profile.steps == 3
    assert 0 < profile.busy <= profile.seconds and profile.idle == pytest.approx(profile.seconds - profile.busy)
    model = part(profile, "Sequential")
    assert list(model.parts) == ["0 (Linear)", "1 (ReLU)", "2 (Linear)"]
    assert model.calls == 3 and model.parts["1 (ReLU)"].operations == 3
    assert part(profile, "backward").calls == 3 and part(profile, "backward").operations > 9
    assert part(profile, "SGD.step").operations >= 3


def test_a_module_that_is_slow_in_python_stands_out() -> None:
    for _ in range(10):  # where others have the cores, any part may be slow, and the device late
        profile = trained(nn.Sequential(nn.Linear(8, 8), Slow(), nn.Linear(8, 1)))
        slow, quick = part(profile, "1 (Slow)"), part(profile, "0 (Linear)")
        if slow.seconds > quick.seconds and profile.idle > 0.05:
            break
    assert slow.seconds > 0.06 and slow.operations == 0
    assert part(profile, "Sequential").total_seconds > slow.seconds > quick.seconds
    assert profile.idle > 0.05
    assert "1 (Slow)" in str(profile) and "recording" in str(profile)


def test_what_a_module_waits_for_is_waiting_and_not_recording() -> None:
    profile = trained(nn.Sequential(nn.Linear(8, 8), Asking(), nn.Linear(8, 1)))
    assert profile.waiting + profile.starting > 0
    costs = [cost for cost in debug.sync_costs() if cost.line[2] == "forward"]
    assert costs and costs[0].reads >= 3


def test_a_step_that_compiles_shows_the_seconds_it_took() -> None:
    with debug.host_profile() as profile:
        torch.ones(3, 77, device="xla").cosh().sum().item()
    assert profile.compiling > 0
    assert profile.steps == 0 and "0 steps" in str(profile)


def test_an_error_in_a_module_closes_its_part() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    with debug.host_profile() as profile:
        with pytest.raises(ValueError):
            Failing()(torch.ones(1))
        nn.Identity()(torch.ones(1))
    assert list(profile.program.parts) == ["Failing", "Identity"]
