"""The door that PyTorch's own registration of "openxla" knocks at."""

import subprocess
import sys

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

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
