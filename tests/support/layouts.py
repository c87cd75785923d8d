"""Layouts that are found, on four virtual devices: each function is a part of tests/api/distributed/test_layouts.py."""

import os
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from examples.mesh import Decoder, bytes_on_one_device, lay_out
from tests.support import parts

xr.use_spmd()

Step = Callable[[], torch.Tensor]


def _by_hand(layout: str) -> tuple[nn.Module, xs.ShardingSpec]:
    torch.manual_seed(0)
    model = Decoder(64, 32, 4, 1).to("xla")
    if layout != "tensor":
        return lay_out(model, layout)
    mesh = xs.Mesh(np.arange(4), (4,), ("tensor",))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            narrows = name.endswith(("o.weight", "down.weight"))
            xs.mark_sharding(parameter, mesh, (None, "tensor") if narrows else ("tensor", None))
    return model, xs.ShardingSpec(mesh, (None, None))


def _step(model: nn.Module, tokens: torch.Tensor) -> tuple[Step, torch.optim.Optimizer]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, optimizer


def _planned(model: nn.Module, tokens: torch.Tensor, device: torch_xla.debug.DeviceSpec) -> tuple[float, int]:
    """Seconds and bytes at the peak by the plan."""
    plan = torch_xla.debug.plan(_step(model, tokens)[0], device=device)
    seconds = plan.seconds(plan.programs[-1])
    assert seconds is not None
    return seconds.most, plan.programs[-1].peak


def _held(model: nn.Module, tokens: torch.Tensor) -> int:
    """The bytes that a device holds between two steps that ran."""
    step, optimizer = _step(model, tokens)
    for _ in range(2):
        step()
        torch_xla.sync()
    return bytes_on_one_device(model, optimizer)


def a_layout_is_found_that_is_as_good_as_those_by_hand() -> None:
    host = torch.randint(64, (8, 16))
    rates = torch_xla.debug.device_specs["TPU v5p"]

    def with_room(room: int) -> torch_xla.debug.DeviceSpec:
        return torch_xla.debug.DeviceSpec("here", room, rates.flops, rates.bandwidth, rates.link_bandwidth)

    known = []
    for name in ("data", "fsdp", "tensor", "both"):
        model, spec = _by_hand(name)
        known.append((*_planned(model, spec.upload(host), with_room(1 << 30)), name))
        del model
    # A device that has room for every layout, and one that has it for what divides the parameters over all devices.
    for room, best in ((1 << 30, min(known)), (360_000, known[1])):
        assert [each[2] for each in known if each[1] <= 360_000] == ["fsdp"], known
        model, spec = _by_hand(best[2])
        expected = _held(model, spec.upload(host))
        torch.manual_seed(0)
        model = Decoder(64, 32, 4, 1).to("xla")
        tokens = host.to("xla")
        # Seven of these are what people write by hand.
        layout = xs.find_layout(model, _step(model, tokens)[0], device=with_room(room), most_compilations=8)
        layout.apply(model)
        spec = xs.ShardingSpec(layout.mesh, (layout.batches[8], None))
        seconds, peak = _planned(model, spec.upload(host), with_room(room))
        held = _held(model, spec.upload(host))
        told = f"found {seconds, peak, held}, by hand {known}, {expected} held\n{layout}"
        assert seconds <= 1.1 * best[0] and held <= 1.1 * expected and peak <= max(room, 1.1 * best[1]), told
        assert seconds <= 1.01 * layout.seconds and abs(peak - layout.peak) < 0.05 * peak, told


def a_training_is_laid_out_by_itself() -> None:
    os.environ["XLA_AUTO_SPMD_COMPILATIONS"] = "5"
    xr.use_spmd(auto=True)
    before = [met.counter_value(name) or 0 for name in ("LayoutSearch", "LayoutCompile")]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    batches = [torch.randn(8, 64) for _ in range(4)]
    losses: dict[str, list[float]] = {}
    compiled = 0
    for device in ("cpu", "xla"):
        torch.manual_seed(1)
        here = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(device)
        here.load_state_dict(model.state_dict())
        optimizer = torch.optim.AdamW(here.parameters(), lr=1e-2)
        losses[device] = []
        for index, batch in enumerate(batches):
            optimizer.zero_grad()
            loss = (here(batch.to(device)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            if device == "xla":
                torch_xla.sync()
                compiled = met.counter_value("UncachedCompile") if index == 2 else compiled
            losses[device].append(loss.item())
    assert met.counter_value("UncachedCompile") == compiled
    torch.testing.assert_close(losses["xla"], losses["cpu"])
    layout = xs.auto_layout()
    found = [met.counter_value(name) for name in ("LayoutSearch", "LayoutCompile")]
    assert layout is not None and found == [before[0] + 1, before[1] + 5]
    assert layout.batches[8] is not None or any(any(spec) for spec in layout.specs.values()), layout
    for name, parameter in here.named_parameters():
        marked = torch.zeros_like(parameter.detach())
        xs.mark_sharding(marked, layout.mesh, layout.specs[name])
        assert (
            xs.wrap_as_sharded_tensor(parameter.detach()).sharding_spec
            == xs.wrap_as_sharded_tensor(marked).sharding_spec
        )


if __name__ == "__main__":
    parts.run_all(globals())
