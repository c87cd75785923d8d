"""Scans: structures, what the body writes to, and its mistakes."""

from typing import Any

import pytest
import torch

from torch_xla._engine.compiled.loops import scan_loop
from torch_xla._engine.compiled.loops.scan_loop import (
    Nested,
    default_partition,
    run,
    tensors_in,
    trace,
    trace_by_itself,
)

INIT = {"sum": torch.zeros(2), "label": "kept"}
XS = (torch.arange(6.0).reshape(3, 2), None)


def moved(value: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("xla"), value)


def test_a_structure_is_filled_with_other_tensors() -> None:
    nested = Nested.of({"a": [torch.ones(1), 3], "b": torch.zeros(2)})
    filled = nested.fill([torch.full((1,), 7.0), torch.ones(2)])
    assert filled["a"][0].item() == 7 and filled["a"][1] == 3 and filled["b"].tolist() == [1, 1]
    assert [each.shape for each in tensors_in(filled)] == [(1,), (2,)]
    with pytest.raises(ValueError):
        nested.fill([torch.ones(1)])


def test_carry_outputs_and_what_is_written_on_the_way() -> None:
    seen, factor = torch.zeros(()).to("xla"), torch.tensor(2.0).to("xla")

    def body(carry: Any, x: Any) -> Any:
        seen.add_(x[0].sum())
        total = carry["sum"] + x[0] * factor
        return {"sum": total, "label": "kept"}, {"double": total * 2}

    init, xs = moved(INIT), moved(XS)
    recipe = trace(body, init, xs)
    assert recipe.written == 1 and recipe.captured[0] is seen and recipe.roles.carried == 2
    carry, ys = run(recipe, init, xs, default_partition)
    assert carry["sum"].tolist() == [12, 18] and carry["label"] == "kept" and seen.item() == 15
    assert ys["double"].tolist() == [[0, 4], [8, 16], [24, 36]]
    run(recipe, init, xs, default_partition)
    assert seen.item() == 30


def test_a_body_that_computes_gradients_is_a_graph_of_its_own() -> None:
    weight = torch.tensor([1.0, 2.0]).to("xla")

    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            leaf = weight.detach().requires_grad_()
            (grad,) = torch.autograd.grad((leaf * x).square().sum(), [leaf])
        return carry + grad, []

    init, xs = moved(torch.zeros(2)), moved(XS[0])
    with torch.no_grad():
        recipe = trace(body, init, xs)
        trace_by_itself(recipe, init, xs)
        total, _ = run(recipe, init, xs, default_partition)
    torch.testing.assert_close(total.cpu(), (2 * weight.cpu() * XS[0].square()).sum(0))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda carry, x: carry, r"must return \(carry, y\); it returned a .*Tensor"),
        (lambda carry, x: (carry, x, x), "it returned a tuple"),
        (lambda carry, x: (carry.sum(), x), r"the body of scan returned float32\[\] for leaf 0"),
        (lambda carry, x: ([carry], x), "of the structure"),
        (lambda carry, x: (3, x), "returned 3 for leaf 0"),
    ],
)
def test_mistakes_of_the_body(body: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        trace(body, moved(torch.zeros(2)), moved(XS[0]))


def test_a_body_may_not_write_to_what_has_gradients() -> None:
    weight = torch.ones(2).to("xla").requires_grad_()

    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        with torch.no_grad():
            weight.add_(1)
        return carry + x, x

    with pytest.raises(RuntimeError, match="writes to a tensor it closes over that requires grad"):
        trace(body, moved(torch.zeros(2)), moved(XS[0]))
    assert scan_loop.is_traced() is False


def test_what_shares_memory_with_what_is_written_is_carried() -> None:
    buffer, apart = moved(torch.zeros(3, 2)), moved(torch.ones(2))
    first, last = buffer[0], buffer[2]

    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        last.add_(x)
        return carry + first + apart, buffer.sum(0)

    init, xs = moved(torch.zeros(2)), moved(XS[0])
    recipe = trace(body, init, xs)
    assert [id(each) for each in recipe.captured] == [id(last), id(buffer), id(first), id(apart)]
    assert recipe.written == 2 and [[place.number for place in group] for group in recipe.groups] == [[0, 1]]
    _, sums = run(recipe, init, xs, default_partition)
    assert sums.tolist() == [[0, 1], [2, 4], [6, 9]] and buffer.tolist() == [[0, 0], [0, 0], [6, 9]]
    # Given memory of its own it is the same recipe; given what it writes to, it is traced anew, and refused.
    run(recipe, moved(torch.ones(2)), xs, default_partition)
    with pytest.raises(RuntimeError, match="sees in two ways"):
        run(recipe, init, buffer, default_partition)
