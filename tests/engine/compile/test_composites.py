"""Marked parts of recorded programs are composites of StableHLO, and the values are those of the parts."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._engine.compile import composites, jax_function
from torch_xla._engine.metrics import counters
from torch_xla._engine.step import pending_graph
from torch_xla.experimental.mark_pattern_utils import StableHLOCompositeBuilder

mark = torch.ops.xla.mark_tensor
HOST = torch.tensor([[0.125, -0.25], [0.5, 0.0625]])


@pytest.fixture(autouse=True)
def graphs_are_compiled_anew() -> Iterator[None]:
    torch_xla.sync()
    torch._dynamo.reset()
    yield
    torch_xla.sync()


def nested(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    outer = StableHLOCompositeBuilder(
        "my.outer", {"sizes": [1, 2], "names": ["a", "b"], "flags": [True, False], "rate": 0.5, "n": 3, "on": True}
    )
    x, w2 = outer.mark_inputs(x, w)
    inner = StableHLOCompositeBuilder("inner")
    hidden = inner.mark_outputs((inner.mark_inputs(x) @ w2).tanh())
    first, second = outer.mark_outputs(hidden * 2 + w.sum(), hidden - 1)  # the sum is of no input: it is given, too
    return first.exp(), second


def text_of(*tensors: Tensor) -> str:
    return xm.get_stablehlo(list(tensors))


def test_one_inside_another_with_several_inputs_and_outputs() -> None:
    made = nested(HOST.to("xla"), HOST.to("xla") - 0.25)
    text = text_of(*made)
    assert text.count('stablehlo.composite "my.outer"') == text.count('stablehlo.composite "torch_xla.inner"') == 1
    for part in ("sizes = [1, 2]", 'names = ["a", "b"]', "flags = [true, false]", "rate = 5.0", "n = 3", "on = true"):
        assert part in text
    hlo = torch_xla._XLAC._get_xla_tensors_hlo(list(made))
    assert 'composite.name="my.outer"' in hlo and 'composite.name="torch_xla.inner"' in hlo
    for result, expected in zip(made, nested(HOST, HOST - 0.25), strict=True):
        torch.testing.assert_close(result.cpu(), expected)


class Model(torch.nn.Module):
    """One builder for all calls, two of which are in one program."""

    def __init__(self) -> None:
        super().__init__()
        self.builder = StableHLOCompositeBuilder("my.layer")

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.builder.mark_outputs((self.builder.mark_inputs(x) * 2).sin())
        return x


def test_a_builder_serves_again_and_a_step_that_repeats_is_compiled_once() -> None:
    model = Model()
    for function in (model, lambda x: nested(x, x)[0]):
        compiled = []
        for _ in range(3):
            x = HOST.to("xla")
            made = function(x)
            if function is model:
                assert text_of(made).count('stablehlo.composite "my.layer"') == 2
            torch_xla.sync()
            torch.testing.assert_close(made.cpu(), function(HOST))
            compiled.append(counters.value_of("UncachedCompile") or 0)
        assert compiled[0] == compiled[-1]


def lowered_by(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that `call` lowers."""
    found: list[str] = []
    lowered = jax_function.lowered

    def noted(*args: Any, **kwargs: Any) -> Any:
        result = lowered(*args, **kwargs)
        found.append(result.as_text())
        return result

    with monkeypatch.context() as patched:
        patched.setattr(jax_function, "lowered", noted)
        call()
        torch_xla.sync(wait=True)
    return found


@pytest.mark.parametrize("way", ["recorded", "openxla", "replayed"])
def test_gradients_pass_through_composites(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = nested
    if way == "openxla":
        run = torch.compile(nested, backend="openxla", fullgraph=True)
    leaves = [HOST.clone().requires_grad_(), (HOST - 0.25).requires_grad_()]
    first, second = nested(*leaves)
    (first.sum() + second.sum()).backward()
    given = [leaf.detach().to("xla").requires_grad_() for leaf in leaves]

    def step() -> Tensor:
        for leaf in given:
            leaf.grad = None
        first, second = run(*given)
        loss: Tensor = first.sum() + second.sum()
        loss.backward()
        return loss.detach()

    called = torch_xla.compile(step, replay=True) if way == "replayed" else step
    texts = lowered_by(lambda: [called() for _ in range(4)], monkeypatch)
    if way != "replayed":  # which runs the program that was recorded first
        assert sum('stablehlo.composite "my.outer"' in text for text in texts) == 1
    for ours, theirs in zip(given, leaves, strict=True):
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_what_is_marked_in_part_or_has_side_effects_is_no_composite() -> None:
    x = HOST.to("xla")
    begun = mark(x, "my.part", 0, "a", True).sin()
    torch_xla.sync()
    ended = mark(begun, "my.part", 0, "a", False) + 1
    apart = mark(mark(x, "my.part", 1, "b", True), "my.part", 0, "b", False)
    elsewhere = mark(mark(x, "my.part", 0, "c", True) * 0 + x, "my.part", 0, "d", False)
    for made, expected in ((ended, HOST.sin() + 1), (apart, HOST), (elsewhere, HOST)):
        assert "composite" not in text_of(made)
        torch.testing.assert_close(made.cpu(), expected)


def test_numbers_that_change_and_random_keys_are_inputs() -> None:
    seen = []
    for number in (2.0, 3.0, 4.0):
        torch.manual_seed(1)
        x = mark(torch.ones(4, 4, device="xla"), "my.noise", 0, "a", True)
        made = mark(torch.nn.functional.dropout(x * number, 0.5), "my.noise", 0, "a", False)
        assert text_of(made).count('stablehlo.composite "my.noise"') == 1
        torch_xla.sync()
        seen.append(made.cpu() / number)
    assert set(seen[0].flatten().tolist()) == {0.0, 2.0} and seen[0].equal(seen[1]) and seen[1].equal(seen[2])


def test_what_a_part_computes_can_be_read_outside() -> None:
    x = HOST.to("xla")
    begin = mark(x, "my.part", 0, "a", True)
    middle = begin.sin()
    aside = middle * 3  # reads the inside, and is read there again
    first = mark(middle + aside, "my.part", 0, "a", False)
    second = mark(first.cos() + middle, "my.part", 1, "a", False)
    made = [first * 2, second, aside, middle]
    assert text_of(*made).count('stablehlo.composite "my.part"') == 1
    sine = HOST.sin()
    for result, expected in zip(made, [8 * sine, (4 * sine).cos() + sine, 3 * sine, sine], strict=True):
        torch.testing.assert_close(result.cpu(), expected)


def test_a_graph_without_marks_has_none() -> None:
    x = HOST.to("xla")
    assert not composites.are_in(pending_graph.graph_of([x + 1]).graph)
    assert composites.are_in(pending_graph.graph_of([mark(x, "a", 0, "0", True)]).graph)
