"""What a graph holds that the CPU refuses: found by the dtypes of its nodes, and raised when the graph is called."""

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_xla._engine.compiled.dynamo.graph_dtypes import refusal_in


def nodes(function: Any, *operands: torch.Tensor, mode: str = "fake") -> list[torch.fx.Node]:
    return list(make_fx(function, tracing_mode=mode)(*operands).graph.nodes)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_the_first_call_that_is_refused_is_found(mode: str) -> None:
    whole, real = torch.arange(6).view(2, 3), torch.ones(2, 3)
    assert refusal_in(nodes(lambda a: torch.hypot(a, a) + 1, real, mode=mode)) is None
    refusal = refusal_in(nodes(lambda a: torch.hypot(a + 1, a), whole, mode=mode))
    assert isinstance(refusal, NotImplementedError) and "hypot_cpu" in str(refusal)


def test_what_the_cpu_lacks_for_halves_is_no_refusal() -> None:
    assert refusal_in(nodes(lambda a: torch.polygamma(1, a) @ a, torch.ones(3, 3, device="meta").half())) is None


def test_a_graph_of_dynamic_sizes_is_refused_when_it_is_called() -> None:
    compiled = torch.compile(lambda a: torch.hypot(a, a), backend="openxla", dynamic=True)
    for size in (2, 3):
        with pytest.raises(NotImplementedError, match="hypot_cpu"):
            compiled(torch.ones(size, dtype=torch.int64, device="xla"))
    assert compiled(torch.ones(4, device="xla")).shape == (4,)
