"""Loops inside of traced functions."""

import sys
from types import FrameType
from typing import Any

import torch
from torch._functorch import eager_transforms
from torch._functorch.eager_transforms import _wrap_tensor_for_grad
from torch.fx.experimental.proxy_tensor import make_fx

from torch_xla._engine.compat import patch_list
from torch_xla._engine.compiled.loops import nested_loops
from torch_xla._engine.compiled.loops.loop_bodies import pure_graph
from torch_xla._engine.compiled.loops.nested_loops import Substitution, Whole


def on_xla(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).to("xla")


def test_functions_are_given_other_tensors_in_the_block_alone() -> None:
    one, other = on_xla(1), on_xla(100)
    with Substitution(lambda each: other if each is one else each):
        assert (one + 1).tolist() == [101] and nested_loops.substituted(one) is other
        with nested_loops.by_itself():
            assert (one + 1).tolist() == [2] and nested_loops.substituted(
                one
            ) is one  # a body inside is traced by itself
        assert torch.stack([one, one]).tolist() == [[100], [100]]
    assert (one + 1).tolist() == [2] and nested_loops.substituted(one) is one


def test_the_innermost_substitution_comes_first() -> None:
    a, b, c = on_xla(1), on_xla(2), on_xla(3)
    with Substitution(lambda each: c if each is b else each):
        with Substitution(lambda each: b if each is a else each):
            assert nested_loops.substituted(a) is c and (a * 1).tolist() == [3]
            around = nested_loops.depth()
            with nested_loops.by_itself():
                assert nested_loops.substituted(a) is a and nested_loops.substituted(a, around) is c


def test_a_whole_is_one_operation_and_part_of_what_is_traced_around_it() -> None:
    x = on_xla(1, 2)
    whole = Whole(pure_graph(lambda x: (x * 2, x.sum()), [x]), "test")
    double, total = whole([x])
    assert double.tolist() == [2, 4] and total.item() == 3 and not nested_loops.is_traced()
    seen = []

    def around(x: torch.Tensor) -> torch.Tensor:
        seen.append(nested_loops.is_traced())
        return whole([x])[0] + 1

    graph = make_fx(around, tracing_mode="fake")(x)
    assert seen == [True] and [str(n.target) for n in graph.graph.nodes if "mul" in str(n.target)]
    assert graph(x).tolist() == [3, 5]


def test_a_transform_is_given_the_substitute() -> None:
    given, instead = on_xla(1.0, 2.0), on_xla(3.0, 4.0)
    with Substitution(lambda each: instead if each is given else each):
        assert torch.vmap(lambda x: x * 2)(given).tolist() == [6, 8]
        assert torch.func.grad(lambda x: (x * x).sum())(given).tolist() == [6, 8]


def test_transforms_are_pytorchs_own_outside_of_bodies() -> None:
    """Dynamo traces PyTorch's functions, and would refuse ours."""
    x = on_xla(1, 2)
    with Substitution(lambda each: each):
        assert torch.vmap(torch.square)(x).tolist() == [1, 4]
    compiled = torch.compile(lambda x: torch.vmap(torch.square)(x), backend="openxla", fullgraph=True)
    assert compiled(x).tolist() == [1, 4]


class Interrupting:
    """Raises `KeyboardInterrupt` at the instruction with a certain number of the code of the package, from 0."""

    def __init__(self, at: int, files: frozenset[str]) -> None:
        self.left = at
        self.files = files

    def __call__(self, frame: FrameType, kind: str, _: object) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes = True
        if kind in ("call", "opcode"):
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt
        return self


def test_an_interrupt_at_any_instruction_leaves_no_substitute_behind() -> None:
    one, other = on_xla(1), on_xla(100)
    files = frozenset((nested_loops.__file__, patch_list.__file__))
    before = _wrap_tensor_for_grad, len(torch.overrides._get_current_function_mode_stack())

    def trace() -> None:
        substitution = Substitution(lambda each: other if each is one else each)
        try:
            with substitution:
                pass
        finally:
            substitution.end()

    at, is_interrupted = 0, True
    while is_interrupted:
        tracer = sys.gettrace()
        sys.settrace(Interrupting(at, files))
        try:
            trace()
            is_interrupted = False
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            sys.settrace(tracer)
        stack = torch.overrides._get_current_function_mode_stack()
        assert (eager_transforms._wrap_tensor_for_grad, len(stack)) == before, at
        assert not nested_loops._here.substitutions and not patch_list.wrap_for_grad.in_force, at
        at += 1
    assert at > 100
    assert nested_loops.substituted(one) is one and (one + 1).tolist() == [2]
