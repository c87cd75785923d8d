"""A recorded graph with repeated parts, cut into stages, for tests of the stages."""

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._engine.compile.source_metadata import Origins
from torch_xla._engine.compile.stages.stage_cuts import Stage, of
from torch_xla._engine.ir.graph import Graph
from torch_xla._engine.step import pending_graph

LAYERS = 4


def recorded(scales: Sequence[float], draws: bool = False) -> pending_graph.Pending:
    """Layers of six operations, or seven where each `draws`, with a number of its own each."""
    x = torch.ones(3, 3).to("xla")
    for scale in scales:
        y = (x.sin() @ x).cos() * scale
        y = y * torch.rand_like(y) if draws else y
        x = (y + x).tanh()
    return pending_graph.graph_of([x])


def cut(graph: Graph, donated: Sequence[int] = ()) -> tuple[Stage, ...]:
    """Its stages, however little they spare."""
    found = of(graph, donated, 1, 1)
    assert len(found) >= LAYERS
    return found


def origins(found: pending_graph.Pending) -> Origins:
    """Where the operations of a graph come from."""
    return Origins(found.lines, found.scopes)


def expected(scales: Sequence[float]) -> Any:
    """Return the results of the layers without random numbers."""
    x = torch.ones(3, 3)
    for scale in scales:
        x = ((x.sin() @ x).cos() * scale + x).tanh()
    return x.numpy()
