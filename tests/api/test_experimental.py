"""Small parts of `torch_xla.experimental` and similar modules, each as documented."""

import copy
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import torch_xla
from torch_xla.amp import GradScaler
from torch_xla.core import xla_builder as xb
from torch_xla.core import xla_op_registry
from torch_xla.debug import metrics
from torch_xla.experimental import assume_pure, callback, deprecation, plugins, scan, scan_layers
from torch_xla.experimental import unbounded_dynamism_export as passes
from torch_xla.experimental.assume_pure import assume_pure_torch
from torch_xla.experimental.gradient_accumulation import XlaBuildHelper, gradient_accumulation
from torch_xla.experimental.gru import GRU
from torch_xla.experimental.pytreeify import pytreeify
from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host
from torch_xla.experimental.unbounded_dynamism_export import exported_program_has_symbolic_input_shape
from torch_xla.stablehlo import StableHLOGraphModule, exported_program_to_stablehlo


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Linear(8, 1))


def test_gradients_are_accumulated_by_a_loop_on_the_device() -> None:
    batch, target = torch.randn(3, 6, 4), torch.randn(3, 6, 1)
    theirs, ours = model(), model().to("xla")
    seen, total = torch.zeros(()), torch.zeros(())
    for x, y in zip(batch, target, strict=True):
        loss = torch.nn.functional.mse_loss(theirs(x), y) / 3
        loss.backward()
        total, seen = total + loss.detach(), seen + x.sum()
    ours[0].bias.grad = torch.ones(8, device="xla")  # there before
    theirs[0].bias.grad += 1

    def step(x: torch.Tensor, y: torch.Tensor, seen: torch.Tensor) -> Any:
        return torch.nn.functional.mse_loss(ours(x), y), seen + x.sum()

    start = torch.zeros((), device="xla")
    found = gradient_accumulation(step, (batch.to("xla"), target.to("xla")), ours, start)
    torch_xla.sync()
    torch.testing.assert_close([each.cpu() for each in found], [total, seen], rtol=1e-4, atol=1e-5)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)
    for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine.cpu(), other, rtol=1e-4, atol=1e-5)


def test_a_pure_step_is_traced_once() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).to("xla")
    batch: torch.Tensor = torch.randn(3, 2, 4, device="xla")
    calls: list[float] = []
    torch_xla.sync()

    def accumulate(scale: float) -> list[torch.Tensor]:
        def step(x: torch.Tensor) -> torch.Tensor:  # made anew, and the same
            calls.append(scale)
            return net(x).square().sum() * scale

        net.zero_grad()
        loss = gradient_accumulation(step, (batch,), net, is_step_pure=True)
        torch_xla.sync()
        return [loss, *(each.grad for each in net.parameters())]

    first = accumulate(2.0)
    traced, compiled = len(calls), metrics.counter_value("UncachedCompile")
    again = accumulate(2.0)
    assert (len(calls), metrics.counter_value("UncachedCompile")) == (traced, compiled)
    torch.testing.assert_close(again, first)
    torch.testing.assert_close(accumulate(3.0), [1.5 * each for each in first])
    assert len(calls) > traced
    with torch.no_grad():
        net[0].weight.mul_(2)
    loss, *_ = accumulate(3.0)
    torch.testing.assert_close(loss, net(batch).square().sum())
    traced = len(calls)
    net[0].weight.requires_grad_(False)  # another program
    assert accumulate(3.0)[1] is None and len(calls) > traced
    net[2] = torch.nn.Linear(3, 1).to("xla")
    torch.testing.assert_close(accumulate(3.0)[0], net(batch).square().sum())
    copy.deepcopy(net).load_state_dict(net.state_dict())  # without what was traced


def test_parameters_of_a_computation_are_collected() -> None:
    helper = XlaBuildHelper("mine")
    tensors = [torch.ones(2, device="xla"), torch.ones(3, device="xla")]
    assert [helper.add_param(tensors[0]), helper.add_param(val=tensors[1], idx=1)] == [0, 1]
    assert helper.num_params == 2 and len(helper.params) == 2
    assert all(one is other for one, other in zip(helper.param_tensors, tensors, strict=True))


def test_gradient_accumulation_refuses() -> None:
    net, batch = torch.nn.Linear(4, 1).to("xla"), torch.ones(3, 2, 4, device="xla")
    with pytest.raises(ValueError, match=r"one length .*; got \[3, 2, 4\], \[2\]"):
        gradient_accumulation(lambda *_: net(batch[0]).sum(), (batch, torch.ones(2, device="xla")), net)
    with pytest.raises(ValueError, match=r"a loss without dimensions first; got \[2, 1\]"):
        gradient_accumulation(net, (batch,), net)


def test_activations_pass_by_the_host() -> None:
    found = []
    for offloaded in (False, True):
        net, x = model().to("xla"), torch.linspace(-1, 1, 24).reshape(6, 4).to("xla")
        if offloaded:
            with torch.autograd.graph.saved_tensors_hooks(place_to_host, place_to_device):
                loss = net(x).square().sum()
        else:
            loss = net(x).square().sum()
        loss.backward()
        found.append([each.grad.cpu() for each in net.parameters()])
    torch.testing.assert_close(found[1], found[0])


def test_a_scan_whose_activations_pass_by_the_host() -> None:
    weight = torch.full((4,), 0.5, device="xla", requires_grad=True)

    def step(carry: torch.Tensor, x: torch.Tensor) -> Any:
        carry = place_to_device(place_to_host((carry * weight + x).sin()))
        return carry, carry

    xs = torch.linspace(0, 1, 12).reshape(3, 4)
    scan.scan(step, torch.zeros(4, device="xla"), xs.to("xla"))[0].sum().backward()
    expected = torch.full((4,), 0.5, requires_grad=True)
    carry = torch.zeros(4)
    for x in xs:
        carry = (carry * expected + x).sin()
    carry.sum().backward()
    torch.testing.assert_close(weight.grad.cpu(), expected.grad)


def test_callbacks_when_a_value_is_there() -> None:
    x = torch.ones(2, device="xla") + 1
    event = callback.on_ready_event(x)
    assert event.wait(300)
    told: list[torch.Tensor] = []
    callback.on_ready_callback(x, told.append)
    assert callback.on_ready_event(x).wait(300)
    for _ in range(1000):
        if told:
            break
        event.wait(0.01)
        event = callback.on_ready_event(x)
        event.wait(1)
    assert told[0] is x


def test_old_names_warn_once() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"torch_xla.old is deprecated. Use torch_xla.*manual_seed instead. Now."
    ):
        old = deprecation.deprecated(torch_xla, torch_xla.manual_seed, "old", "Now.")
        old(1)
    old(2)
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        deprecation.mark_deprecated(lambda: 1)()


def test_gru_and_pure_functions() -> None:
    layer = GRU(3, 4, bidirectional=True)
    x = torch.randn(5, 2, 3)
    expected = layer(x)[0]
    torch.testing.assert_close(layer.to("xla")(x.to("xla"))[0].detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    assert assume_pure_torch(lambda x: x * 2, use_cache=True)(torch.ones(1, device="xla")).item() == 2


@pytreeify
class Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: Any, factor: float) -> Any:
        ctx.factor = factor
        return {"sum": pair["a"] + pair["b"], "scaled": [pair["a"] * factor]}

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return {"a": grad["sum"] + ctx.factor * grad["scaled"][0], "b": grad["sum"]}, None


def test_autograd_functions_of_structures() -> None:
    a, b = (torch.ones(2, device="xla", requires_grad=True) for _ in range(2))
    found = Swap.apply({"a": a, "b": b}, 3.0)
    (found["sum"].sum() + found["scaled"][0].sum()).backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([4.0, 4.0], [1.0, 1.0])


def test_operations_of_the_users_own() -> None:
    axpy = xla_op_registry.register("mine::axpy", lambda x, y, by: x * by + y)
    x = torch.arange(3.0, device="xla", requires_grad=True)
    result = axpy(x, torch.ones(3, device="xla"), by=2.0)
    result.sum().backward()
    assert result.tolist() == [1, 3, 5] and x.grad.tolist() == [2, 2, 2]


def test_slices_of_operations() -> None:
    xs, y = torch.randn(4, 3), torch.ones(3)
    place = torch.tensor([2], device="xla")
    taken = xb.XlaCallable(scan.dynamic_slice)(xs.to("xla"), place).cpu()
    torch.testing.assert_close(taken, xs[2])
    written = xb.XlaCallable(scan.dynamic_update_slice)(xs.to("xla"), y.to("xla"), place).cpu()
    torch.testing.assert_close(written[2], y)
    with pytest.raises(ValueError, match="make 3 elements; the sequence has 4"):
        scan.split([1, 2, 3, 4], 1, 2)


def test_scaling_that_steps_with_zeros() -> None:
    for overflow in (False, True):
        weight = torch.ones(2, device="xla", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = GradScaler(init_scale=2.0, use_zero_grad=True)
        loss = (weight * (float("inf") if overflow else 0.5)).sum()
        scaler.scale(loss).backward()
        metrics.clear_counters()
        scaler.step(optimizer)
        scaler.update()
        assert not metrics.counter_value("aten::_local_scalar_dense")
        assert weight.tolist() == ([1, 1] if overflow else [0.5, 0.5])
        assert scaler.get_scale() == (1.0 if overflow else 2.0)


def test_a_computation_in_other_hands() -> None:
    x, y = torch.ones(2, device="xla"), torch.ones(2, device="xla") * 2
    torch_xla.sync()
    context = torch_xla._XLAC.lowering.LoweringContext("mine")
    with pytest.raises(RuntimeError, match="call build"):
        context.hlo_text()
    result = x * y + x
    context.build([result])
    assert "multiply" in context.hlo_text() and context.get_name_string() == "mine"
    numbers = [context.tensor_parameter_id(each) for each in (x, y)]
    assert sorted(numbers) == [0, 1] and context.tensor_parameter_id(torch.ones(3, device="xla")) == -1
    assert context.parameter_id_tensor_mapping()[numbers[1]].tolist() == [2, 2]
    again = xb.xla_computation_as_func(xb.computation_from_module_proto("mine", context.hlo()))
    module = torch_xla._XLAC._get_stablehlo([result], "", [], False)  # before a read that computes the result too
    assert again(*(context.device_parameter_id_tensor_mapping()[n] for n in range(2))).tolist() == [3, 3]
    assert torch_xla._XLAC._run_stablehlo(module, [x, y])[0].tolist() == [3, 3]


def test_symbolic_sizes_are_seen() -> None:
    net, x = torch.nn.Linear(2, 2), torch.ones(3, 2)
    assert not exported_program_has_symbolic_input_shape(torch.export.export(net, (x,)))
    dynamic = ({0: torch.export.Dim("rows")},)
    assert exported_program_has_symbolic_input_shape(torch.export.export(net, (x,), dynamic_shapes=dynamic))


def test_export_passes_leave_programs_as_they_compute() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.groups = torch.nn.LayerNorm(6), torch.nn.GroupNorm(2, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.groups(self.norm(x)[:])
            return torch.ops.aten.slice.Tensor(y, 1, 0, 2).split([1, 1], 1)[0].unsqueeze(1) + y.select(1, 0).sum()

    model, x = Model(), torch.randn(3, 4, 6)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    graph = exported.graph_module
    slices = [node for node in graph.graph.nodes if node.target is torch.ops.aten.slice.Tensor]
    passes.remove_no_op_slice(graph)
    left = [node for node in graph.graph.nodes if node.target is torch.ops.aten.slice.Tensor]
    assert len(slices) == 2 and len(left) == 1 and left[0].args[1:] == (1, 0, 2)
    for name in (
        "decompose_dynamic_native_layer_norm", "decompose_dynamic_native_group_norm", "decompose_dynamic_shape_select",
        "decompose_split_with_sizes", "flatten_embedding_indices_tensor", "replace_dynamic_expand_with_xla_op",
        "replace_dynamic_view_with_xla_op", "dynamic_unsqueeze_to_view",
    ):  # fmt: skip
        assert getattr(passes, name)(graph) is graph
    torch.testing.assert_close(exported.module()(x), model(x))
    other = torch.randn(5, 4, 6)
    found = exported_program_to_stablehlo(exported)(other.to("xla"))
    torch.testing.assert_close((found[0] if isinstance(found, tuple) else found).cpu(), model(other))


def test_norms_are_composed_of_simple_operators() -> None:
    x, weight, bias = torch.randn(2, 4, 3), torch.randn(4), torch.randn(4)
    ours = passes.native_group_norm_impl(x, weight, bias, 2, 4, 3, 2, 1e-5)
    torch.testing.assert_close(ours, passes.native_group_norm_pattern(x, weight, bias, 2, 4, 3, 2, 1e-5))
    y = x.transpose(1, 2).contiguous()
    ours = passes.native_layer_norm_impl(y, [4], weight, bias, 1e-5)
    torch.testing.assert_close(ours, passes.native_layer_norm_pattern(y, 4, weight, bias, 1e-5))
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = x
    called = passes.call_function(graph, torch.ops.aten.sum.dim_IntList, (node, [1]))
    assert called.meta["val"].equal(x.sum(1))


def test_caches_can_be_cleared() -> None:
    calls: list[int] = []

    @assume_pure.assume_pure
    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2

    x = torch.ones(3, device="xla")
    kept = len(assume_pure._XLA_COMPUTATION_CACHE)
    double(x)
    assert len(assume_pure._XLA_COMPUTATION_CACHE) == kept + 1
    traced = len(calls)
    double(x)
    assert len(calls) == traced
    assume_pure._XLA_COMPUTATION_CACHE.clear()
    assert len(assume_pure._XLA_COMPUTATION_CACHE) == 0 and double(x).tolist() == [2, 2, 2] and len(calls) > traced

    def negate(array: jax.Array) -> jax.Array:
        calls.append(2)
        return -array

    calls.clear()
    xb.call_jax(negate, (x,))
    xb.call_jax(negate, (x,))
    assert xb._jax_to_xla_computation_cache_elements() == len(xb._JAX_TO_XLA_COMPUTATION_CACHE) > 0 and calls == [2]
    xb._JAX_TO_XLA_COMPUTATION_CACHE.clear()
    assert xb._jax_to_xla_computation_cache_elements() == 0
    assert xb.call_jax(negate, (x,)).tolist() == [-1, -1, -1] and len(calls) > 1

    layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2)).to("xla")
    scan_layers.scan_layers(layers, torch.ones(1, 2, device="xla"), is_layer_pure=True)
    assert layers[0] in scan_layers._ONE_LAYER_CACHE
    scan_layers._ONE_LAYER_CACHE.clear()
    again = scan_layers.scan_layers(layers, torch.ones(1, 2, device="xla"), is_layer_pure=True)
    torch.testing.assert_close(again.cpu(), layers[1](layers[0](torch.ones(1, 2, device="xla"))).cpu())


def test_models_are_saved_by_the_names_of_the_package(tmp_path: Path) -> None:
    model, x = torch.nn.Linear(2, 3), torch.randn(4, 2)
    torch_xla.save_torch_model_as_stablehlo(model, (x,), tmp_path / "model")
    torch_xla.save_as_stablehlo(torch.export.export(model, (x,)), tmp_path / "program")
    for name in ("model", "program"):
        loaded = StableHLOGraphModule.load(tmp_path / name)
        torch.testing.assert_close(loaded(x.to("xla")).cpu(), model(x))


PLUGIN = """
    import torch, torch_xla, torch_xla.runtime as xr
    from jaxlib import xla_client
    from torch_xla.experimental import plugins

    class Mine(plugins.DevicePlugin):
        {how}

    plugins.register_plugin("MINE", plugin := Mine())
    x = torch.randn(3, 4, device="xla", requires_grad=True)
    (x @ x.t()).relu().sum().backward()
    y = x.detach().cpu().requires_grad_()
    (y @ y.t()).relu().sum().backward()
    assert torch.allclose(x.grad.cpu(), y.grad, atol=1e-5) and torch_xla.device_count() == {devices}
    assert xr.device_type() == "MINE" and plugins.default() is plugin
    plugins.use_dynamic_plugins()
    assert plugins.using_dynamic_plugins()
    print("works", (x * 2).sum().item() == (x.cpu() * 2).sum().item() or "nearly")
"""


def run_on_a_plugin(how: str, devices: int, **settings: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PLUGIN).replace("{how}", how).replace("{devices}", str(devices))],
        env={**os.environ, "PJRT_DEVICE": "MINE", **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0 and "works" in ran.stdout, ran.stderr[-3000:]


@pytest.mark.slow
def test_a_plugin_becomes_the_device() -> None:
    run_on_a_plugin("def make_client(self): return xla_client.make_cpu_client(num_devices=2)", 2)


@pytest.mark.slow
def test_the_library_of_a_plugin_becomes_the_device() -> None:
    """With a library that others built: XLA's client of the CPU, as the Python package of this name brings it."""
    found = importlib.util.find_spec("fastatomstruct_xla_cpu")
    if found is None or not found.submodule_search_locations:
        pytest.skip("no PJRT plugin for the CPU is installed here: pip install --no-deps fastatomstruct-xla-cpu")
    library = Path(found.submodule_search_locations[0]) / "libpjrt_cpu.so"
    options = "def client_create_options(self): return {'cpu_device_count': 2}"
    run_on_a_plugin(f"def library_path(self): return {str(library)!r}\n    {options}", 2)


def test_a_plugin_without_its_library_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="define library_path"):
        plugins.register_plugin("NONE", plugins.DevicePlugin())
    with pytest.raises(KeyError, match="no plugin is registered for CPU"):
        plugins.default()
