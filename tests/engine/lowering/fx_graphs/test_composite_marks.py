"""The marks of composites in FX graphs are numbered, so that a graph that is traced again is the same."""

import uuid

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_xla._engine.lowering.fx_graphs.composite_marks import MARK, number_composites


def test_a_graph_that_is_traced_again_is_the_same() -> None:
    def marked(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            identity = uuid.uuid4().hex
            x = MARK(MARK(x, "my.net", 0, identity, True) + 1, "my.net", 0, identity, False)
        return x

    graphs = [make_fx(marked)(torch.ones(2)) for _ in range(2)]
    assert graphs[0].code != graphs[1].code
    for graph in graphs:
        number_composites(graph)
    assert graphs[0].code == graphs[1].code and graphs[0](torch.ones(2)).tolist() == [3, 3]
    found = [node.args[3] for node in graphs[0].graph.nodes if node.target is MARK]
    assert found == ["graph 0", "graph 0", "graph 1", "graph 1"]
