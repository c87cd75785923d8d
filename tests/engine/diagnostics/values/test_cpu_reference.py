"""One recorded operator, run by PyTorch on the CPU."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_xla._engine.diagnostics.values import cpu_reference
from torch_xla._engine.diagnostics.values.cpu_reference import NotRunnable
from torch_xla._engine.ir.graph import Operation
from torch_xla._engine.step.pending_graph import graph_of

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]])


def recorded(call: Callable[[Tensor], Tensor]) -> tuple[Operation, tuple[float | int, ...]]:
    """The one operation of a call on the device, and its numbers."""
    found = graph_of([call(X.to("xla"))])
    (operation,) = found.graph.operations
    return operation, found.numbers


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "an operator": lambda x: x.softmax(-1),
    "numbers": lambda x: x.clamp(-1.5, 2.5),
    "a number": lambda x: x * 2.5,
    "a list": lambda x: torch.cat([x, x], 1),
    "in place": lambda x: x.relu_(),
    "out of one dtype": lambda x: x.to(torch.float64),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_operator_gives_what_the_call_does(call: Callable[[Tensor], Tensor]) -> None:
    operation, numbers = recorded(call)
    (found,) = cpu_reference.run(operation.plan, [X.clone()] * len(operation.operands), numbers)
    assert found is not None
    torch.testing.assert_close(found, call(X.clone()), rtol=0, atol=0)


def test_a_view_is_read_and_written_through() -> None:
    x = X.to("xla")
    x.t()[1:].mul_(2)
    expected = X.clone()
    expected.t()[1:].mul_(2)
    graph = graph_of([x]).graph
    values = [X]
    for operation in graph.operations:
        numbers = graph_of([x]).numbers[operation.first_number :][: len(operation.plan.numbers)]
        values += cpu_reference.run(operation.plan, [values[slot] for slot in operation.operands], numbers)  # type: ignore[arg-type]
    torch.testing.assert_close(values[graph.outputs[0]].reshape(2, 3), expected, rtol=0, atol=0)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "bias"])
def test_attention_gives_the_logarithm_of_its_sums_too(kind: str, groups: int) -> None:
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 4 // groups, 5, 8), torch.randn(2, 4 // groups, 5, 8)
    bias = {"mask": torch.rand(5, 5) > 0.4, "bias": torch.randn(5, 5)}.get(kind)
    if kind == "mask":
        bias[:, 0] = True  # type: ignore[index]
    output, sums, *_ = cpu_reference._attention(query, key, value, bias, is_causal=kind == "causal")
    k, v = (each.repeat_interleave(groups, 1) for each in (key, value))
    expected = F.scaled_dot_product_attention(query, k, v, bias, is_causal=kind == "causal")
    torch.testing.assert_close(output, expected)
    scores = query @ k.mT / 8**0.5
    seen = torch.ones(5, 5).tril().bool() if kind == "causal" else bias if kind == "mask" else torch.ones(5, 5).bool()
    scores = (scores + (bias if kind == "bias" else 0)).masked_fill(~seen, -torch.inf)  # type: ignore[operator]
    torch.testing.assert_close(sums, scores.exp().sum(-1).log())


def test_what_pytorch_cannot_run_is_said() -> None:
    drawn = graph_of([torch.rand(3, device="xla")]).graph
    operation = next(each for each in drawn.operations if each.plan.draws)
    with pytest.raises(NotRunnable, match="it draws random numbers"):
        cpu_reference.run(operation.plan, [X], ())
    operation = graph_of([X.to("xla") @ X.t().to("xla")]).graph.operations[-1]
    with pytest.raises(NotRunnable, match="PyTorch on the CPU raises: "):
        cpu_reference.run(operation.plan, [X, X], ())


def test_a_copy_lies_as_it_is_told() -> None:
    found = cpu_reference.in_its_order(X, (2, 3), (1, 2))
    assert found.stride() == (1, 2) and torch.equal(found, X)
    assert found.untyped_storage().data_ptr() != X.untyped_storage().data_ptr()
