"""A training program on a vendor's device: JAX's CPU client, registered as the platform STANDIN.

    python -m tests.support.vendor one|mesh

It makes the calls that a vendor's package makes around a model, and compares with PyTorch on the CPU.
"""

import copy
import os
import re
import sys
from typing import Any

import numpy as np
import torch
from jaxlib import xla_client
from torch.overrides import TorchFunctionMode

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.experimental
import torch_xla.runtime as xr
from torch_xla import _XLAC
from torch_xla.experimental import plugins
from torch_xla.experimental.custom_kernel import XLA_LIB


class StandIn(plugins.DevicePlugin):
    """The vendor's plugin."""

    def make_client(self) -> Any:
        return xla_client.make_cpu_client(num_devices=2)


class Names(TorchFunctionMode):
    """Names each operation by its number, as a code generator does."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type == "xla":
            name = f"node{len(self.given)}"
            if _XLAC._set_xla_custom_op_name_prefix(result, name, 0):
                self.given.append(name)
        return result


def model_and_data() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return model, torch.randn(6, 8), torch.randint(0, 4, (6,))


def trained(device: str, way: str = "recorded", mark: Any = None) -> tuple[list[float], list[torch.Tensor]]:
    model, x, y = model_and_data()
    model, x, y = copy.deepcopy(model).to(device), x.to(device), y.to(device)
    if mark is not None:
        mark(model, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    forward = torch.compile(model, backend="openxla") if way == "openxla" else model

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = torch_xla.compile(step, replay=True) if way == "replay" else step
    torch_xla.experimental.eager_mode(way == "eager")
    losses = []
    for _ in range(6):
        losses.append(run(x, y))
        if device != "cpu":
            torch_xla.sync()
    torch_xla.experimental.eager_mode(False)
    return [loss.item() for loss in losses], [each.detach().cpu() for each in model.parameters()]


def compare(found: Any, expected: Any) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def one() -> None:
    expected = trained("cpu")
    assert not _XLAC._xla_computation_cache_is_initialized()
    torch_xla.set_custom_compile_options({"xla_cpu_enable_fast_math": False})
    _XLAC._set_custom_compile_options({})
    for way in ("recorded", "replay", "openxla", "eager"):
        compare(trained("xla", way), expected)
    assert met.counter_value("MarkStep") and met.metric_data("CompileTime")
    assert _XLAC._xla_computation_cache_is_initialized() and xr.get_num_cached_compilation_graph() > 0
    xr.clear_computation_cache()
    assert xr.get_num_cached_compilation_graph() == 0 and not _XLAC._xla_computation_cache_is_initialized()
    compare(trained("xla"), expected)
    named_nodes()
    numbers_as_constants()
    operator_of_the_vendor()
    assert xm.xla_device_hw("xla:0") == _XLAC._xla_get_device_hw_type("xla:0")


def named_nodes() -> None:
    model, x, _ = model_and_data()
    model, x = model.to("xla"), x.to("xla")
    torch_xla.sync()
    with Names() as names:
        result = model(x)
    proto = _XLAC._get_xla_tensors_hlo_proto([result])
    found = {name.decode() for name in re.findall(rb"node\d+(?=/aten::)", proto)}
    assert len(names.given) == 3 and found == set(names.given), (names.given, found)


def numbers_as_constants() -> None:
    x = torch.ones(3).to("xla")

    def scaled() -> list[int]:
        compiled = []
        for factor in (2.5, 3.5, 4.5, 5.5):
            met.clear_all()
            assert (x * factor).tolist() == [factor] * 3
            compiled.append(met.counter_value("UncachedCompile") or 0)
        return compiled

    _XLAC._set_xla_all_numbers_special_scalars(True)
    assert _XLAC._get_xla_all_numbers_special_scalars() and scaled() == [1, 1, 1, 1] and scaled() == [0, 0, 0, 0]
    assert "constant(5.5)" in _XLAC._get_xla_tensors_hlo([x * 5.5])
    _XLAC._set_xla_all_numbers_special_scalars(False)
    assert scaled() == [1, 1, 0, 0]


def operator_of_the_vendor() -> None:
    XLA_LIB.define("standin_double(Tensor x) -> Tensor")
    XLA_LIB.impl("standin_double", lambda x: x * 2, "CompositeExplicitAutograd")
    assert torch.ops.xla.standin_double(torch.ones(2, device="xla")).tolist() == [2, 2]


def mesh() -> None:
    expected = trained("cpu")
    xr.use_spmd()
    grid = xs.Mesh(np.arange(xr.global_runtime_device_count()), (1, 2), ("batch", "model"))

    def mark(model: Any, x: torch.Tensor) -> None:
        xs.mark_sharding(model[0].weight, grid, ("model", None))
        xs.mark_sharding(model[2].weight, grid, (None, "model"))
        xs.mark_sharding(x, grid, ("batch", None))

    for way in ("recorded", "openxla"):
        compare(trained("xla", way, mark), expected)
    x = torch.ones(4, 2).to("xla")
    xs.mark_sharding(x, grid, ("model", None))
    assert _XLAC._get_xla_sharding_spec(x) == "{devices=[2,1]0,1}"
    assert "sdy" in _XLAC._get_xla_tensors_hlo([x + 1])  # Shardy's shardings, without a switch


if __name__ == "__main__":
    os.environ["PJRT_DEVICE"] = "STANDIN"
    plugin = StandIn()
    assert isinstance(plugin, _XLAC.PjRtPlugin)
    _XLAC._register_pjrt_plugin("STANDIN", plugin)
    xr.set_device_type("STANDIN")
    {"one": one, "mesh": mesh}[sys.argv[1]]()
    assert xr.device_type() == "STANDIN" and plugins.default() is plugin
    print("trained")
