"""Where in the program something happens, read off the stack."""

import sys
from collections.abc import Callable

import pytest
import torch

from torch_xla._engine.diagnostics.logs import stack_places
from torch_xla._engine.dispatch import cpu_fallback
from torch_xla._engine.metrics import events
from torch_xla._engine.metrics.events import Cause


def seen(run: Callable[[], object]) -> list[stack_places.CallSite]:
    """Return the places at which a call reports evaluations, transfers and fallbacks."""
    found: list[stack_places.CallSite] = []

    def hear(event: object) -> None:
        found.append(stack_places.here())

    events.listen(hear)
    try:
        run()
    finally:
        events.unlisten(hear)
    return found


def test_the_frames_of_the_program_come_innermost_first() -> None:
    line = sys._getframe().f_lineno + 1
    place = (lambda: stack_places.here())()
    assert place.frames[0] == (__file__, line, "<lambda>") and place.frames[1][2] == sys._getframe().f_code.co_name
    assert place.operator == "" and place.graph == "" and not place.is_fallback
    assert stack_places.text(place.frames[0]) == f"<lambda> ({__file__}:{line})"


def test_calls_of_modules_are_no_frames_of_the_program() -> None:
    class Looks(torch.nn.Module):
        def forward(self) -> stack_places.CallSite:
            return stack_places.here()

    frames = Looks()().frames
    assert [frame[2] for frame in frames[:2]] == ["forward", sys._getframe().f_code.co_name]


def test_the_operator_at_work_is_named_and_hides_what_is_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_fallback, "_warned", set())
    x = torch.ones(3).to("xla")
    (place,) = {place for place in seen(lambda: torch.equal(x, x + 1))}
    assert place.operator == "equal" and place.frames[0][0] == __file__ and not place.is_fallback
    edges = torch.tensor([0.0, 2.0]).to("xla")
    with pytest.warns(UserWarning):
        found = seen(lambda: torch.histogramdd(torch.ones(3, 1).to("xla"), (edges,)))
    fell_back = next(place for place in found if place.is_fallback)
    assert fell_back.operator == "_histogramdd_from_bin_tensors"
    assert any(frame[0] == __file__ for frame in fell_back.frames)


def test_causes_are_told_in_the_words_of_the_documents() -> None:
    place = stack_places.CallSite((), "", stack_places._DYNAMO, "", False)
    assert place.cause(Cause.SYNC) == "dynamo is executing a compiled program"
    assert place.cause(Cause.SYNC, compiling=True) == "dynamo is compiling a FX graph to HLO"
    assert place.cause(Cause.READ).startswith("most likely user code trying to access tensor value")
    assert "too long" in place.cause(Cause.FULL) and stack_places.here().cause(Cause.SYNC) == "user torch_xla.sync"


def test_operators_without_their_namespace() -> None:
    assert stack_places.short("aten::equal") == "equal" and stack_places.short("mine::op") == "mine::op"
