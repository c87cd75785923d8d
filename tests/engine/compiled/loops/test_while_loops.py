"""Loops whose number of rounds the device decides."""

from typing import Any

import pytest
import torch

from torch_xla._engine.compiled.loops import while_loops


def on_xla(value: Any) -> torch.Tensor:
    return torch.tensor(value).to("xla")


def test_numbers_and_tensors_are_carried_and_others_used() -> None:
    step = on_xla([1.0, 2.0])
    n, found = while_loops.while_loop(
        lambda n, x: x.sum() < 20, lambda n, x: (n + 1, x + step), (0, on_xla([0.0, 0.0]))
    )
    assert n.item() == 7 and found.tolist() == [7, 14]
    twice = while_loops.Loop(lambda n, x: n < 2, lambda n, x: [n + 1, x * step], (0, step))
    assert [each.tolist() for each in twice.run((0, step))] == [2, [1, 8]]
    assert [each.tolist() for each in twice.run((1, step * 2))] == [2, [2, 8]]  # with another start


@pytest.mark.parametrize(
    ("condition", "body", "error", "words"),
    [
        (lambda x: True, lambda x: x, TypeError, "returns a tensor of one element; got True"),
        (lambda x: x > 0, lambda x: x, TypeError, r"one element; got bool\[2\]"),
        (lambda x: x.sum() > 0, lambda x: (x, x), ValueError, "must return what it carries, of the structure"),
        (lambda x: x.sum() > 0, lambda x: x.sum(), ValueError, r"returned float32\[\] for leaf 0 .* is float32\[2\]"),
        (lambda x: x.sum() > 0, lambda x: x.long(), ValueError, r"returned int64\[2\] for leaf 0"),
        (lambda x: x.sum() > 0, lambda x: (3,), ValueError, "returned 3 for leaf 0"),
    ],
)
def test_mistakes_are_told(condition: Any, body: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        while_loops.while_loop(condition, body, (on_xla([1.0, 2.0]),))


def test_what_a_body_may_not_do() -> None:
    kept = on_xla([0.0])

    def writes(n: torch.Tensor) -> torch.Tensor:
        kept.add_(1)
        return n + 1

    with pytest.raises(RuntimeError, match=r"writes to float32\[1\], which it closes over"):
        while_loops.while_loop(lambda n: n < 3, writes, (0,))
    with pytest.raises(TypeError, match="a loop carries tensors and numbers; got a str"):
        while_loops.while_loop(lambda n: n < 3, lambda n: n, ("text",))
    x = on_xla([1.0]).requires_grad_()
    (found,) = while_loops.while_loop(lambda x: x.sum() < 3, lambda x: (x + 1,), (x,))
    with pytest.raises(RuntimeError, match="a gradient is asked of while_loop"):
        found.sum().backward()


def test_a_loop_that_follows_from_its_function_is_traced_once() -> None:
    def step(n: torch.Tensor) -> torch.Tensor:
        return n + 1

    def found(key: Any, start: torch.Tensor) -> while_loops.Loop:
        return while_loops.loop_of(step, key, lambda n: n < 3, step, (start,))

    one = found("a", on_xla(0))
    assert found("a", on_xla(1)) is one and found("b", on_xla(0)) is not one
    assert found("a", on_xla(0.0)) is not one and found(None, on_xla(0)) is not one
