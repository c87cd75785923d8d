"""Graphs found by their hash and run on other inputs; what is recorded can be forgotten."""

import gc
from collections.abc import Callable

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import _XLAC


@pytest.fixture(autouse=True)
def a_new_step() -> None:
    torch_xla.sync()
    met.clear_all()


def computed(*values: float) -> torch.Tensor:
    return torch.tensor(values).to("xla")


def test_a_graph_runs_again_on_other_inputs_and_numbers() -> None:
    x, y = computed(1.0, 2.0), computed(3.0, 4.0)
    z = torch.add(x * 2.5, y[:1]).sum()
    name, (identities, inputs) = _XLAC._get_graph_hash([z]), _XLAC._get_tensors_xla_device_data_node([z])
    assert identities[:2] == [_XLAC._xla_get_tensor_id(x), _XLAC._xla_get_tensor_id(y)]
    assert [t.device.type for t in inputs] == ["xla", "xla", "cpu", "cpu"]
    assert [t.item() for t in inputs[2:]] == [2.5, 0]  # the second: where the view of `y` begins
    assert len(set(identities)) == 4
    assert _XLAC._run_cached_graph(name, inputs)[0].item() == z.item() == 13.5
    others = [computed(1.0, 1.0), computed(10.0, 7.0), torch.tensor(0.5), torch.tensor(1)]
    [again] = _XLAC._run_cached_graph(name, others)
    assert again.item() == 15.0
    assert x.tolist() == [1.0, 2.0] and y.tolist() == [3.0, 4.0]  # nothing was given away
    assert met.metric_data("RunCachedGraphInputData")[0] == met.metric_data("RunCachedGraphOutputData")[0] == 2


def test_compiled_ahead_it_compiles_no_more() -> None:
    x = computed(1.0, 2.0)
    y = x.cos() * x
    name, (_, inputs) = _XLAC._get_graph_hash([y]), _XLAC._get_tensors_xla_device_data_node([y])
    _XLAC._xla_warm_up_cache([y], [])
    _XLAC._clear_pending_irs(str(x.device))
    compiled = met.metric_data("CompileTime")
    [result] = _XLAC._run_cached_graph(name, inputs)
    torch.testing.assert_close(result.cpu(), torch.tensor([1.0, 2.0]).cos() * torch.tensor([1.0, 2.0]))
    assert met.metric_data("CompileTime") == compiled


def test_draws_are_new_ones() -> None:
    y = torch.rand(4, device="xla") + 1
    name, (_, inputs) = _XLAC._get_graph_hash([y]), _XLAC._get_tensors_xla_device_data_node([y])
    first, second = (_XLAC._run_cached_graph(name, inputs)[0].tolist() for _ in range(2))
    assert first != second and all(1 <= each < 2 for each in first + second)


def test_a_result_that_is_an_input_stays_one_buffer() -> None:
    x = computed(1.0, 2.0)
    y = x + 1
    name, (_, inputs) = _XLAC._get_graph_hash([x, y]), _XLAC._get_tensors_xla_device_data_node([x, y])
    same, more = _XLAC._run_cached_graph(name, inputs)
    same.add_(1)
    torch_xla.sync()
    assert (x.tolist(), same.tolist(), more.tolist()) == ([1.0, 2.0], [2.0, 3.0], [2.0, 3.0])


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch.arange(6.0).view(3, 2).to("xla").t(),
        lambda: torch.arange(12.0).view(2, 6).to("xla")[:, ::2],
        lambda: torch.arange(3.0).to("xla").expand(2, 3),
        lambda: torch.arange(6.0).view(3, 2).t().to("xla") * 2,
    ],
    ids=["transposed", "every other", "expanded", "computed in another order"],
)
def test_an_input_may_have_other_strides(other: Callable[[], torch.Tensor]) -> None:
    x = torch.ones(2, 3).to("xla")
    torch_xla.sync()
    y = x * 2 + x.sum(0)
    name, (_, inputs) = _XLAC._get_graph_hash([y]), _XLAC._get_tensors_xla_device_data_node([y])
    given = other()
    before = given.cpu()
    [result] = _XLAC._run_cached_graph(name, [given, *inputs[1:]])
    torch.testing.assert_close(result.cpu(), before * 2 + before.sum(0))
    assert given.cpu().equal(before)


def test_wrong_inputs_are_refused() -> None:
    x = computed(1.0, 2.0)
    y = x * 2
    name = _XLAC._get_graph_hash([y])
    with pytest.raises(RuntimeError) as error:
        _XLAC._run_cached_graph(name, [x])
    assert str(error.value) == (
        "The graph takes 1 tensors on the device and 1 numbers, in the order of "
        "`_get_tensors_xla_device_data_node`; 1 came."
    )
    with pytest.raises(RuntimeError) as error:
        _XLAC._run_cached_graph(name, [computed(1.0), torch.tensor(2)])
    assert str(error.value) == (
        "Input 0 of the graph is torch.float32 of size [2] and stride [1]; "
        "torch.float32 of size [1] and stride [1] came."
    )
    with pytest.raises(RuntimeError, match="No graph with the hash 00 is known"):
        _XLAC._run_cached_graph(b"\0", [])


def test_what_is_recorded_can_be_forgotten() -> None:
    x = computed(1.0, 2.0)
    y = x + 1
    x.mul_(3)
    _XLAC._clear_pending_irs("xla:0")
    torch_xla.sync()
    assert met.metric_data("ExecuteTime") is None
    assert (x + 1).tolist() == [1.0, 1.0] and y.tolist() == [0.0, 0.0]  # as uninitialised memory
    z = computed(5.0)
    assert (z * 2).tolist() == [10.0]


def test_the_memory_of_every_living_tensor_is_asked() -> None:
    gc.collect()
    before = _XLAC._check_device_tensor_need_materialization("xla:0")
    x = computed(1.0)
    y, view = x + 1, x[:1]
    after = _XLAC._check_device_tensor_need_materialization("xla:0")
    assert (len(after) - len(before), sum(after) - sum(before)) == (2, 1)
    torch_xla.sync()
    assert sum(_XLAC._check_device_tensor_need_materialization("xla:0")) == sum(before)
    assert (y.item(), view.item()) == (2.0, 1.0)
