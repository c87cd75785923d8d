"""Training a module that `auto_policy` lays out, on four virtual CPU devices: each function is a part of
tests/api/distributed/test_auto_policy.py."""

import copy
import os

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import distribute_module

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.support import parts
from torch_xla.distributed.spmd.api import auto_policy


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.norm = nn.LayerNorm(256)
        self.down = nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(self.norm(torch.relu(self.up(x))))
        return found


def a_module_on_the_host_is_laid_out_and_trains_as_on_the_cpu() -> None:
    assert not xr.is_spmd()
    os.environ["XLA_AUTO_SPMD_COMPILATIONS"] = "2"
    torch.manual_seed(0)
    host = _Block()
    module = distribute_module(copy.deepcopy(host), DeviceMesh("xla", list(range(4))), auto_policy)
    assert xr.is_spmd() and all(each.device.type == "xla" for each in module.parameters())
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (module, host)]
    losses: list[list[float]] = [[], []]
    for batch in [torch.randn(16, 64) for _ in range(4)]:
        for number, (model, device) in enumerate(((module, "xla"), (host, "cpu"))):
            optimizers[number].zero_grad()
            loss = (model(batch.to(device)) - 1).square().mean()
            loss.backward()
            optimizers[number].step()
            torch_xla.sync()
            losses[number].append(loss.item())
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(module.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4)


def what_was_found_has_a_spec_for_each_parameter() -> None:
    layout = xs.auto_layout()
    assert layout is not None and set(layout.specs) == {name for name, _ in _Block().named_parameters()}
    sizes = {name: parameter.dim() for name, parameter in _Block().named_parameters()}
    assert {name: len(spec) for name, spec in layout.specs.items()} == sizes


def a_module_in_inference_is_laid_out() -> None:
    torch.manual_seed(1)
    host = _Block().eval()
    module = distribute_module(copy.deepcopy(host), DeviceMesh("xla", [[0, 1], [2, 3]]), auto_policy)
    x = torch.randn(8, 64)
    with torch.no_grad():
        torch.testing.assert_close(module(x.to("xla")).cpu(), host(x), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    parts.run_all(globals())
