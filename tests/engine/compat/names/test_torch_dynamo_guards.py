"""Dynamo's guards lose no interrupt, and still see which hooks there are."""

import _thread
import functools
import operator

import pytest
import torch

import torch_xla  # noqa: F401
from torch_xla._engine.compat.names import torch_dynamo_guards


def test_an_interrupt_while_guards_are_checked_is_raised() -> None:
    """An interrupt is sent from C in another guard, before the one that would be raised in."""
    function = torch.compile(lambda x: (x * 2).sum(), backend="openxla")
    x = torch.ones(3, device="xla")
    function(x), function(x)
    checks: list[object] = []
    original = torch._dynamo.guards.GuardBuilder.AUTOGRAD_SAVED_TENSORS_HOOKS
    assert original.__name__ == "AUTOGRAD_SAVED_TENSORS_HOOKS"

    class Root:
        add_lambda_guard = staticmethod(lambda check, *_: checks.append(check))

    class Builder:
        class guard_manager:
            root = Root

        _set_guard_export_info = staticmethod(lambda *_: None)

    class Guard:
        name = ""
        user_stack = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._dynamo.guards, "get_verbose_code_parts", lambda *_: [])
        original(Builder, Guard)  # type: ignore[arg-type]
    (check,) = checks
    # The interrupt is pending as the guard is called; a guard in Python would raise it, and C++ would drop it.
    both = map(operator.call, (_thread.interrupt_main, functools.partial(check, {})))  # type: ignore[arg-type]
    answers: list[object] = []
    with pytest.raises(KeyboardInterrupt):
        answers.extend(both)
        len(answers)
    assert answers == [None, True]


def test_no_hooks_and_hooks_in_python_share_a_graph() -> None:
    compiled: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        compiled.append(inputs)
        return graph

    torch.compile(lambda x: x + 1, backend="openxla")(torch.ones(2, device="xla"))
    function = torch.compile(lambda x: x * 2, backend=backend)
    function(torch.ones(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        function(torch.ones(2))
    function(torch.ones(2))
    assert len(compiled) == 1


@pytest.mark.parametrize("answer", [True, False])
def test_the_guard_in_python_is_asked_while_there_are_hooks(answer: bool) -> None:
    asked: list[object] = []
    check = torch_dynamo_guards._in_c(lambda x: bool(asked.append(x)) or answer)
    assert check({}) is True and not asked
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert check({}) is answer and asked == [None]
