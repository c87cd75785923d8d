"""The door that PyTorch's own registration of "openxla" knocks at."""

import gc
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla._dynamo import dynamo_bridge as also
from torch_xla.core import dynamo_bridge


def test_the_bridge_has_two_paths() -> None:
    assert also.extract_compiled_graph is dynamo_bridge.extract_compiled_graph


def test_a_graph_of_operators_is_compiled() -> None:
    x = torch.arange(3.0, device="xla")
    graph = make_fx(lambda x: (x * 2, x.max(0)[1]))(x)
    doubled, place = dynamo_bridge.extract_compiled_graph(graph, (x,))(x)
    assert doubled.tolist() == [0.0, 2.0, 4.0] and place.item() == 2


@pytest.mark.slow
def test_pytorchs_own_registration_works() -> None:
    # In a separate process that has not called `torch.compile`, which would register our backend.
    program = """
import torch, torch_xla
@torch._dynamo.optimize("openxla")
def function(x):
    return x.max(0)[0] * 2
print(function(torch.arange(4.0, device="xla")).item())
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "6.0"


def test_a_graph_of_functions_is_traced_first() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (torch.relu(x) + 1,)

    graph = torch.fx.symbolic_trace(Model())
    x = torch.tensor([-1.0, 2.0], device="xla")
    assert dynamo_bridge.extract_compiled_graph(graph, (x,))(x)[0].tolist() == [1.0, 3.0]


def test_a_matcher_gives_arguments_their_places_and_keeps_the_rest() -> None:
    x, weight = torch.ones(2).to("xla"), torch.full((2,), 3.0).to("xla")
    y = x * weight + 1.5
    ids, values = _XLAC._get_tensors_xla_device_data_node([y])
    name, argument = _XLAC._get_graph_hash([y]), _XLAC._xla_get_tensor_id(x)
    matcher = dynamo_bridge.GraphInputMatcher({argument: 1}, ids, values, {argument})
    assert [each is None for each in matcher.graph_input_xla_values] == [each == argument for each in ids]
    held = weakref.ref(x)
    del x, y, values
    gc.collect()
    assert held() is None  # what is an argument is not kept
    found = matcher(["not a tensor", torch.full((2,), 5.0).to("xla")])
    assert _XLAC._run_cached_graph(name, found)[0].tolist() == [16.5, 16.5]
    seed = dynamo_bridge.GraphInputMatcher({}, [_XLAC._get_seed_info_id()], [weight], set())([])
    assert seed[0].item() == xm.get_rng_state()
    with pytest.raises(ValueError, match="no argument is known for the tensor 7"):
        dynamo_bridge.GraphInputMatcher({}, [7], [weight], {7})([])


def test_nones_and_repeated_results_come_back() -> None:
    remover, deduper = dynamo_bridge.NoneRemover(), dynamo_bridge.Deduper()
    a, b = object(), object()
    for values in ([None, a, None, None, b, a, None], [a], [None], []):
        original = list(values)
        remover.remove_nones(values)
        assert None not in values
        assert deduper.recover(deduper.dedup(values)) == values
        remover.add_nones(values)
        assert values == original


def test_nodes_that_leave_the_device_are_collected() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ours", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.sin(x) + self.ours
            z = torch.linalg.eigvals(y.outer(y))
            host = y.to("cpu")
            return (host * 2).to("xla") + z.real

    collector = dynamo_bridge.UnsupportedNodesCollector(torch.fx.symbolic_trace(Model().to("xla")))
    met.clear_counters()
    torch.ops.aten.linalg_eigvals(torch.eye(2, device="xla"))  # counted before: says nothing of the graph
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collector.run(torch.ones(3, device="xla"))
    found = [node.name for node in collector.get_unsupported_nodes()]
    counted = ["linalg_eigvals"] if met.executed_fallback_ops() else []
    assert found == [*counted, "to", "mul", "to_1"]


def test_donors_are_asked_for_in_a_block() -> None:
    for module in (dynamo_bridge, also):
        with module.alias_with_buffer_donor_config():
            assert _XLAC._xla_get_enable_alias_with_buffer_donor_config()
        assert not _XLAC._xla_get_enable_alias_with_buffer_donor_config()
