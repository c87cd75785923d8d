"""Recorded operations can be inspected: as text, as StableHLO, as HLO. This runs nothing."""

import re
import threading
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

_XLAC = torch_xla._XLAC


@pytest.fixture(autouse=True)
def a_new_step() -> None:
    torch_xla.sync()
    met.clear_all()


def recorded() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.tensor([[1.0, 2.0]]).to("xla")
    return x, (x * 2).sum(dim=1)


def test_the_graph_of_a_tensor_as_text() -> None:
    _, y = recorded()
    assert _XLAC._get_xla_tensors_text([y]) == (
        "IR {\n"
        "  %0 = f32[1,2] xla::device_data()\n"
        "  %1 = f32[1,2] aten::mul(%0), other=2\n"
        "  %2 = f32[1] aten::sum(%1), dim=[1], ROOT=0\n"
        "}\n"
    )
    assert met.metric_data("ExecuteTime") is None


def test_the_lines_of_the_program_are_told_on_demand() -> None:
    _XLAC._set_ir_debug(True)
    try:
        _, y = recorded()
        assert f"location=recorded@{__file__}:" in _XLAC._get_xla_tensors_text([y])
        assert _XLAC._get_ir_debug()
    finally:
        _XLAC._set_ir_debug(False)
    assert "location" not in _XLAC._get_xla_tensors_text([y])


def test_without_tensors_it_is_everything_that_is_held() -> None:
    _, y = recorded()
    z = torch.cos(y)
    torch.sin(y)  # no reference to the result
    text = _XLAC._get_xla_tensors_text([])
    assert "aten::sum(%1), dim=[1], ROOT=0" in text and "aten::cos(%2), ROOT=1" in text and "aten::sin" not in text
    assert "stablehlo.cosine" in xm.get_stablehlo() and "stablehlo.sine" not in xm.get_stablehlo()
    assert z.shape == (1,)


def test_a_view_and_a_value_that_is_computed_can_be_looked_at() -> None:
    x, _ = recorded()
    text = _XLAC._get_xla_tensors_text([x[:, 1], x])
    assert text == (
        "IR {\n"
        "  %0 = f32[1,2] xla::device_data(), ROOT=1\n"
        "  %1 = f32[1] xla::read_view(%0), size=(1,), stride=(2,), storage_offset=1, ROOT=0\n"
        "}\n"
    )


def test_looking_changes_neither_values_nor_programs() -> None:
    def step(look: bool) -> list[float]:
        _, y = recorded()
        if look:
            _XLAC._get_xla_tensors_text([y[0]])
            xm.get_stablehlo()
        torch_xla.sync()
        return list(y.tolist())

    assert step(look=False) == [6]
    met.clear_all()
    assert step(look=True) == [6]
    assert met.metric_data("CompileTime") is None


def test_the_other_languages() -> None:
    _, y = recorded()
    assert "stablehlo.multiply" in xm.get_stablehlo([y]) and "tensor<1x2xf32>" in xm.get_stablehlo([y])
    assert xm.get_stablehlo_bytecode([y]).startswith(b"ML\xefR")
    assert _XLAC._get_stablehlo([y]).decode() == xm.get_stablehlo([y])
    assert _XLAC._get_stablehlo([y], emit_bytecode=True).startswith(b"ML\xefR")
    hlo = _XLAC._get_xla_tensors_hlo([y])
    assert hlo.startswith("HloModule") and "f32[1,2]" in hlo and "multiply" in hlo
    assert len(_XLAC._get_xla_tensors_hlo_proto([y])) > 50
    assert _XLAC._get_xla_tensors_dot([y]).startswith("digraph G {")
    assert met.metric_data("ExecuteTime") is None


def test_equal_graphs_have_equal_hashes() -> None:
    first, second = recorded()[1], recorded()[1]
    assert _XLAC._get_graph_hash([first]) == _XLAC._get_graph_hash([second])
    assert _XLAC._get_graph_hash([first]) != _XLAC._get_graph_hash([first + 1])
    assert len(_XLAC._get_graph_hash([first])) == 16


def test_all_that_is_known_of_a_tensor() -> None:
    x, y = recorded()
    pending = _XLAC._get_xla_tensor_debug_info(y)
    assert pending.startswith(f"XLATensor {{\nTensor ID: {_XLAC._xla_get_tensor_id(y)}\nDevice: xla:0\n")
    assert "State: pending" in pending and "aten::sum" in pending and __file__ in pending
    computed = _XLAC._get_xla_tensor_debug_info(x)
    assert "State: data" in computed and "IR {" not in computed
    assert "Size: [1, 2], stride [2, 1], offset 0" in computed
    assert _XLAC._get_xla_tensor_shape_type(x.bfloat16()) == "bf16"


def test_the_identity_of_memory() -> None:
    x = torch.ones(4, device="xla")
    number = _XLAC._xla_get_tensor_id(x)
    for alias in (x, x.view(2, 2), x[1:], x.detach(), x.data, torch.nn.Parameter(x), x.add_(1)):
        assert _XLAC._xla_get_tensor_id(alias) == _XLAC._xla_get_tensor_view_alias_id(alias) == number
    torch_xla.sync()
    assert _XLAC._xla_get_tensor_id(x) == number
    assert _XLAC._xla_get_tensor_id(x.clone()) != number


def test_tensors_of_another_device_are_refused() -> None:
    asks: list[Any] = [
        _XLAC._xla_get_tensor_id,
        lambda t: _XLAC._get_xla_tensors_text([t]),
        _XLAC._unsafe_buffer_pointer,
    ]
    for ask in asks:
        with pytest.raises(RuntimeError, match="^Expected XLA tensor. Got: torch.FloatTensor$"):
            ask(torch.ones(1))


def test_what_is_pending_is_told_and_computed_on_demand() -> None:
    x, y = recorded()
    assert _XLAC._check_tensor_need_materialization([x, y]) == [False, True]
    _XLAC._xla_sync_multi([y], devices=[])
    assert _XLAC._check_tensor_need_materialization([y]) == [False]
    z = y + 1
    _XLAC._xla_sync_live_tensors("xla:0", [], wait=True)
    assert _XLAC._check_tensor_need_materialization([z]) == [False]
    assert [t.tolist() for t in _XLAC._xla_get_cpu_tensors([y, z])] == [[6], [7]]


def test_a_step_of_the_extension_leaves_the_closures_queued() -> None:
    ran: list[int] = []
    xm.add_step_closure(ran.append, args=(1,))
    _XLAC._xla_step_marker("xla:0", [], wait=True)
    assert not ran
    torch_xla.sync()
    assert ran == [1]


def test_the_default_device_by_its_name() -> None:
    assert _XLAC._xla_get_default_device() == "xla:0"
    assert _XLAC._xla_set_default_device("xla:0") == "xla:0"
    assert _XLAC._xla_get_default_device_ordinal() == 0
    assert _XLAC._xla_get_devices()[0] == "xla:0"
    assert _XLAC._xla_get_all_devices() == _XLAC._xla_real_devices() == torch_xla.real_devices()
    assert _XLAC._xla_num_devices() == torch_xla.device_count()
    assert _XLAC._xla_device_kind("xla:0") == xm.xla_device_kind()


def test_uploads_by_the_name_of_the_device() -> None:
    x, y = torch.ones(2), torch.zeros(3, dtype=torch.int64)
    results = _XLAC._xla_tensors_from_aten([x, y], ["xla:0"])
    assert [t.device.type for t in results] == ["xla", "xla"]
    assert [t.tolist() for t in results] == [[1, 1], [0, 0, 0]]


def test_the_address_of_an_element() -> None:
    x = torch.ones(4, device="xla") + 1
    start = _XLAC._unsafe_buffer_pointer(x)
    assert start and _XLAC._unsafe_buffer_pointer(x[2:]) == start + 8


def test_counters_and_metrics_by_their_old_names() -> None:
    _XLAC._xla_increment_counter("Mine", 3)
    assert _XLAC._xla_counter_value("Mine") == 3 and "Mine" in _XLAC._xla_counter_names()
    recorded()[1].tolist()
    assert "ExecuteTime" in _XLAC._xla_metric_names()
    assert _XLAC._xla_metric_data("ExecuteTime") == met.metric_data("ExecuteTime")
    assert _XLAC._xla_metrics_report() == met.metrics_report()
    assert "Counter: Mine" in _XLAC._short_xla_metrics_report(["Mine"], [])
    assert _XLAC._get_executed_fallback_ops() == []
    _XLAC._clear_xla_counters()
    _XLAC._clear_xla_metrics()
    assert met.metrics_report() == ""


def test_the_state_of_the_runtime() -> None:
    _XLAC._init_computation_client()
    assert _XLAC._xla_runtime_is_initialized()
    recorded()[1].tolist()
    assert _XLAC._xla_get_num_cached_compilation_graph() == torch_xla.runtime.get_num_cached_compilation_graph() >= 1
    _XLAC._xla_set_rng_seed(5, "xla:0")
    assert _XLAC._xla_get_rng_seed() == 5
    assert _XLAC._get_git_revs()["xla"] == torch_xla.__version__


def test_programs_are_compiled_ahead_without_running() -> None:
    x = torch.ones(71).to("xla")
    met.clear_all()
    y = (x * 2).sum()
    _XLAC._xla_warm_up_cache([y], [])
    assert met.counter_value("UncachedCompile") == 1 and met.metric_data("ExecuteTime") is None
    assert y.item() == 142
    assert met.counter_value("UncachedCompile") == 1 and met.counter_value("CachedCompile") == 1


def test_execution_can_be_forbidden() -> None:
    x = torch.ones(3).to("xla")
    y = x + 1
    _XLAC._set_allow_execution(False)
    try:
        assert not _XLAC._get_allow_execution()
        with pytest.raises(
            RuntimeError, match=r"test_inspection.py:\d+ in test_execution_can_be_forbidden makes recorded"
        ):
            y.tolist()
        assert x.tolist() == [1, 1, 1]  # it is there already
    finally:
        _XLAC._set_allow_execution(True)
    assert _XLAC._get_allow_execution() and y.tolist() == [2, 2, 2]


def test_the_longest_computations_are_reported_with_their_lines() -> None:
    x = torch.ones(3).to("xla")
    y, z = x + 1, x
    for _ in range(5):
        z = z * 2
    assert re.fullmatch(
        "Tensors of xla:0 that need 2 recorded operations or more: 1\n"
        rf"  f32\[3\] needs 5 operations made at {re.escape(__file__)}:\d+ in test_the_longest_\w+\n",
        _XLAC._xla_tensors_report(2),
    )
    assert _XLAC._xla_tensors_report(1, "xla:0").count("\n") == 1 + 2 and y.shape == (3,)
    assert _XLAC._xla_tensors_report().endswith(": 0\n")


def test_a_callback_is_called_when_the_value_is_there() -> None:
    y = torch.ones(3).to("xla") + 1
    called = threading.Event()
    _XLAC._on_ready_callback(y, called.set)
    assert called.wait(60)
    assert y.tolist() == [2, 2, 2]


def test_tensors_on_the_same_memory_have_the_same_handle() -> None:
    x = torch.ones(3).to("xla")
    one, view, other = _XLAC._get_tensors_handle([x, x[1:], x + 1])
    assert one == view != other
