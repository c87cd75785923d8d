"""Names of the C++ extension that vendors' back ends call: operations, collectives, devices and settings."""

import gc
import re

import pytest
import torch

import torch_xla
import torch_xla.core.xla_builder as xb
import torch_xla.debug.profiler as xp
import torch_xla.experimental
from torch_xla import _XLAC


def on_device(*values: float) -> torch.Tensor:
    return torch.tensor(values, device="xla")


def test_a_computation_is_built_by_the_extensions_names() -> None:
    builder = _XLAC._xla_op_create_builder("mine")
    shape = _XLAC._xla_op_tensor_shape(on_device(1.0, 2.0))
    x, y = (_XLAC._xla_op_param(builder, number, shape) for number in range(2))
    total = _XLAC._xla_op_create(builder, "Add", (x, y), {})
    assert _XLAC._xla_op_builder(total) is builder and xb.Shape(_XLAC._xla_op_shape(total)) == xb.Shape(shape)
    computation = _XLAC._xla_op_build("mine", total)
    assert isinstance(computation, _XLAC.XlaComputation) and "add" in _XLAC._xla_computation_text(computation)
    (found,) = _XLAC._xla_user_computation("xla::mine", [on_device(1.0, 2.0), on_device(3.0, 4.0)], computation)
    assert found.tolist() == [4, 6]
    proto = _XLAC._get_xla_tensors_hlo_proto([on_device(1.0) * 2])
    assert "multiply" in _XLAC._xla_computation_text(_XLAC._xla_op_computation_from_module_proto("c", proto)) or proto


def test_collectives_of_one_replica_give_what_they_take_and_tokens() -> None:
    x, token = torch.arange(4.0).to("xla"), _XLAC._get_all_reduce_token("xla:0")
    assert _XLAC._xla_all_reduce("sum", x, 0.5, [], True).tolist() == [0, 0.5, 1, 1.5]
    inplace = x.clone()
    assert _XLAC._xla_all_reduce_inplace("sum", [inplace], 2.0, [], True) is None and inplace.tolist() == [0, 2, 4, 6]
    assert _XLAC._xla_all_gather(x, 0, 1, [], True).tolist() == x.tolist()
    assert _XLAC._xla_collective_permute(x, token, [[0, 0]])[0].tolist() == x.tolist()
    result, token = _XLAC._xla_all_to_all(x.view(2, 2), token, 0, 1, 1, [], True)
    assert result.shape == (2, 2) and isinstance(token, _XLAC.IrValue)
    part, token = _XLAC._xla_reduce_scatter("sum", x, token, 2.0, 0, 1, [], True)
    assert part.tolist() == [0, 2, 4, 6]
    _XLAC._set_all_reduce_token("xla:0", token)
    assert _XLAC._get_all_reduce_token("xla:0") is token
    out = torch.empty(4, device="xla")
    for call in (
        lambda: _XLAC._xla_all_gather_out(out, x, token, 0, 1, [], True),
        lambda: _XLAC._xla_reduce_scatter_out("sum", out, x, token, 1.0, 0, 1, [], True),
        lambda: _XLAC._xla_all_gather_coalesced_out([out], [x], token, 0, 1, [], True),
        lambda: _XLAC._xla_reduce_scatter_coalesced_out("sum", [out], [x], token, 1.0, 0, 1, [], True),
    ):
        out.zero_()
        assert isinstance(call(), _XLAC.IrValue) and out.tolist() == x.tolist()
    for results in (
        _XLAC._xla_all_gather_coalesced([x, x + 1], token, 0, 1, [], True),
        _XLAC._xla_reduce_scatter_coalesced("sum", [x, x + 1], token, 1.0, 0, 1, [], True),
    ):
        assert [each.tolist() for each in results[:-1]] == [[0, 1, 2, 3], [1, 2, 3, 4]]
    _XLAC._set_all_reduce_token("xla:0", None)


def test_optimizers_take_a_step_unless_a_gradient_overflowed() -> None:
    for skipped in (0.0, 1.0):
        host, ours = torch.ones(3, requires_grad=True), torch.ones(3, device="xla")
        host.grad = torch.full((3,), 2.0)
        torch.optim.SGD([host], lr=0.1, momentum=0.9).step()
        step, buf, grad = on_device(1.0), torch.zeros(3, device="xla"), torch.full((3,), 2.0, device="xla")
        found = torch.tensor(skipped, device="xla")
        _XLAC._xla_sgd_optimizer_step_(found, step, ours, buf, grad, 0.0, 0.9, 0.1, 0.0, False, False)
        torch.testing.assert_close(ours.cpu(), torch.ones(3) if skipped else host.detach())
        host, ours = torch.ones(3, requires_grad=True), torch.ones(3, device="xla")
        host.grad = torch.full((3,), 2.0)
        torch.optim.AdamW([host], lr=0.1, weight_decay=0.1).step()
        step, mean, square = (torch.zeros(size, device="xla") for size in ((), (3,), (3,)))
        _XLAC._xla_adam_optimizer_step_(
            found, step, ours, grad, mean, square, None, 0.9, 0.999, 0.1, 0.1, 1e-8, False, False, True
        )
        torch.testing.assert_close(ours.cpu(), torch.ones(3) if skipped else host.detach())


@pytest.mark.parametrize(("scales", "axis"), [([0.1], -1), ([0.1, 0.2, 0.3], 0), ([0.1, 0.2], 1)])
def test_tensors_are_quantised_and_back(scales: list[float], axis: int) -> None:
    x = torch.linspace(-1, 1, 6).view(3, 2)
    zeros = [1] * len(scales)
    ours = _XLAC._xla_quantize_tensor(x.to("xla"), scales, zeros, -128, 127, "torch.int8", axis)
    shape = [1, 1]
    if axis >= 0:
        shape[axis] = len(scales)
    scale = torch.tensor(scales).view(shape)
    expected = (x / scale).round().add(1).to(torch.int8)
    assert ours.dtype is torch.int8 and ours.cpu().equal(expected)
    back = _XLAC._xla_dequantize_tensor(ours, scales, zeros, -128, 127, "int8", axis)
    torch.testing.assert_close(back.cpu(), (expected - 1) * scale)
    with pytest.raises(ValueError, match="name of a dtype"):
        _XLAC._xla_quantize_tensor(x.to("xla"), scales, zeros, -128, 127, "nothing", axis)


def test_other_operations() -> None:
    assert _XLAC._xla_cast_int4(torch.empty(2, 2, device="xla"), [1, -8, 7, 0]).tolist() == [[1, -8], [7, 0]]
    x = on_device(1.0, 2.0)
    assert _XLAC._from_dlpack(_XLAC._to_dlpack(x)).tolist() == [1, 2]
    y = x + 1
    _XLAC._xla_optimization_barrier_([y])
    assert y.tolist() == [2, 3] and "opt-barrier" in _XLAC._get_xla_tensors_hlo([barred()])
    assert _XLAC._xla_dynamic_expand(
        torch.ones(1, 3, device="xla"), [4, 3], torch.ones(4, 2, device="xla"), 0, 0
    ).shape == (4, 3)
    marked = _XLAC._xla_mark_tensor(x, "mine", 0, "0", True, None)
    assert marked.tolist() == [1, 2]


def barred() -> torch.Tensor:
    y = torch.ones(2).to("xla") + 1
    _XLAC._xla_optimization_barrier_([y])
    return y


def test_devices_and_processes() -> None:
    names = _XLAC._xla_get_runtime_devices()
    assert names == _XLAC._xla_real_devices() and _XLAC._xla_get_all_runtime_devices() == _XLAC._xla_get_all_devices()
    assert _XLAC._xla_num_runtime_devices() == len(names) == _XLAC._xla_num_global_devices()
    assert [each["name"] for each in _XLAC._xla_get_all_device_attributes()] == names
    assert _XLAC._xla_get_device_attributes("xla:0") == _XLAC._xla_get_device_attributes(names[0])
    assert _XLAC._xla_get_device_ordinal("xla:0") == 0 and _XLAC._xla_get_platform_version()
    assert (_XLAC._xla_get_process_index(), _XLAC._xla_get_num_processes()) == (0, 1)
    _XLAC._xla_set_replication_devices(["CPU:0"])
    assert _XLAC._xla_get_replication_devices() == ["CPU:0"] and _XLAC._xla_get_replication_devices_count() == 1
    _XLAC._xla_set_replication_devices([])
    assert _XLAC._xla_get_spmd_config_is_locked() is True and _XLAC._prepare_to_exit() is None


def test_settings_are_told_back() -> None:
    _XLAC._set_use_eager_mode(True)
    assert _XLAC._get_use_eager_mode() and torch_xla.experimental.is_eager_mode()
    _XLAC._set_use_eager_mode(False)
    assert not torch_xla.experimental.is_eager_mode()
    _XLAC._set_current_graph_name("encoder")
    assert _XLAC._get_current_graph_name() == "encoder"
    _XLAC._set_current_graph_name("")
    for get, set_ in (
        (_XLAC._get_xla_handle_special_scalars, _XLAC._set_xla_handle_special_scalars),
        (_XLAC._get_xla_enable_device_data_cache, _XLAC._set_xla_enable_device_data_cache),
    ):
        set_(True)
        assert get() is False


def named(tensor: torch.Tensor) -> list[str]:
    proto = _XLAC._get_xla_tensors_hlo_proto([tensor])
    return [name.decode() for name in re.findall(rb"[\w/]*aten::\w+", proto)]


def test_an_operation_is_named_alone_inside_its_blocks() -> None:
    x = torch.ones(2).to("xla")
    with xp.Trace("outer"):
        a = x + 1
        b = a.sin()
    c = b * a
    d = c.exp()
    for tensor, name in ((c, "product"), (a, "sum"), (a, "again")):
        assert _XLAC._set_xla_custom_op_name_prefix(tensor, name, 0)
    e = d.neg()
    assert named(e) == [
        "/outer/sum/again/aten::add", "/outer/aten::sin", "/product/aten::mul", "/aten::exp", "/aten::neg",
    ]  # fmt: skip
    torch_xla.sync()
    assert not _XLAC._set_xla_custom_op_name_prefix(e, "late", 0)


def test_a_scope_lasts_as_long_as_its_object() -> None:
    x = torch.ones(2).to("xla")
    scope = _XLAC.profiler.scope_pusher("held")
    y = x.cos()
    del scope
    gc.collect()
    with _XLAC.profiler.TraceMe("block"):
        z = y.tan()
    assert named(z.abs()) == ["/held/aten::cos", "/block/aten::tan", "/aten::abs"]
