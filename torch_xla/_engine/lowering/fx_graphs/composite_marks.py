"""The marks of composites in FX graphs."""

import torch
from torch.fx import GraphModule

from ..machinery.composite_names import IN_A_GRAPH
from ..machinery.xla_op_schemas import LIBRARY

assert LIBRARY is not None  # which has the operator
MARK = torch.ops.xla.mark_tensor.default


def number_composites(module: GraphModule) -> None:
    """Number the composites of a graph: a graph that is traced again is the same, although its marks are new."""
    numbers: dict[tuple[str, str], int] = {}
    for node in module.graph.nodes:
        if node.target is MARK:
            x, name, place, identity, *rest = node.args
            number = numbers.setdefault((name, identity), len(numbers))
            node.args = (x, name, place, f"{IN_A_GRAPH}{number}", *rest)
    if numbers:
        module.recompile()
