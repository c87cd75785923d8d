"""The door that PyTorch's own registration of "openxla" knocks at."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_xla._dynamo import dynamo_bridge as also
from torch_xla.core import dynamo_bridge


def test_the_bridge_has_two_paths() -> None:
    assert also.extract_compiled_graph is dynamo_bridge.extract_compiled_graph


def test_a_graph_of_operators_is_compiled() -> None:
    x = torch.arange(3.0, device="xla")
    graph = make_fx(lambda x: (x * 2, x.sum()))(x)
    doubled, total = dynamo_bridge.extract_compiled_graph(graph, (x,))(x)
    assert doubled.tolist() == [0.0, 2.0, 4.0] and total.item() == 3.0


def test_a_graph_of_functions_is_traced_first() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (torch.relu(x) + 1,)

    graph = torch.fx.symbolic_trace(Model())
    x = torch.tensor([-1.0, 2.0], device="xla")
    assert dynamo_bridge.extract_compiled_graph(graph, (x,))(x)[0].tolist() == [1.0, 3.0]
