"""The operation that XLA does not compile is found by compiling beginnings of the graph."""

import jax
import pytest
import torch

from torch_xla._engine.compile import failing_op_search
from torch_xla._engine.compile.executable_key import key_of
from torch_xla._engine.compile.stages.stage_cuts import Stage
from torch_xla._engine.ir.call_plan import Operand, Plan
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.ir.value_spec import spec_of
from torch_xla._engine.runtime import device_assignment as targets

SPEC = spec_of((2, 3), (3, 1), torch.float32)
SIN, COS = (
    Plan(op, ((Operand(0),), {}), (SPEC,), (), (SPEC,))
    for op in (torch.ops.aten.sin.default, torch.ops.aten.cos.default)
)


def chain(*plans: Plan) -> Graph:
    """Each operation reads the result of the one before it; the first and the last result are given."""
    operations = tuple(Operation(plan, (index,), 0, -1, index + 1, 0) for index, plan in enumerate(plans))
    return Graph((SPEC,), operations, (1, len(plans)))


class Compiler:
    """Refuses graphs with a cosine, and counts what it is asked for."""

    def __init__(self, message: str = "INTERNAL: no cosine") -> None:
        self.tried: list[Graph] = []
        self.message = message

    def compiled(self, graph: Graph, *_: object) -> None:
        self.tried.append(graph)
        if self.refuses(graph):
            raise jax.errors.JaxRuntimeError(self.message)

    def refuses(self, graph: Graph) -> bool:
        return any(each.plan is COS for each in graph.operations)

    def takes_the_place_of_xla(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(failing_op_search, "lowered", lambda graph, *_: graph)
        monkeypatch.setattr(failing_op_search, "compiled", self.compiled)


def found(monkeypatch: pytest.MonkeyPatch, compiler: Compiler, graph: Graph) -> int | None:
    compiler.takes_the_place_of_xla(monkeypatch)
    return failing_op_search.of(graph, key_of(graph, (), targets.of_device(jax.devices("cpu")[0])), ())


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_it_is_found_by_halving(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for at in range(count):
        compiler = Compiler()
        graph = chain(*[COS if index in (at, count - 1) else SIN for index in range(count)])
        assert found(monkeypatch, compiler, graph) == at
        assert len(compiler.tried) <= 3 + count.bit_length()
        for each in compiler.tried[1:]:  # nothing of a beginning is left out, for all of it is given or used
            last = len(each.operations)
            assert each.outputs == ((1, last) if last > 1 else (1,) if last else ())


def test_nothing_is_blamed_for_what_is_over_or_meets_every_program(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, Compiler(), chain(SIN, SIN)) is None

    class Broken(Compiler):
        def refuses(self, graph: Graph) -> bool:
            return True

    assert found(monkeypatch, Broken(), chain(SIN, COS)) is None

    class Beside(Compiler):
        """Refuses a cosine behind a sine alone."""

        def refuses(self, graph: Graph) -> bool:
            return super().refuses(graph) and len(graph.operations) > 1

    assert found(monkeypatch, Beside(), chain(SIN, COS, SIN)) is None
    with pytest.raises(KeyboardInterrupt):
        found(monkeypatch, Broken(message="INTERNAL: \nKeyboardInterrupt: "), chain(SIN, COS))


def stage(first: int, *plans: Plan) -> Stage:
    """Operations from the place `first` on, one for each of the plans."""
    operations = tuple(range(first, first + len(plans)))
    return Stage(chain(*plans), (), (first,), (), (), (0, 0), operations, (), False)


def test_of_a_graph_in_stages_each_kind_is_compiled_by_itself_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [stage(0, SIN, SIN), stage(2, SIN, SIN), stage(4, SIN, COS, SIN), stage(7, SIN, SIN)]
    whole = chain(SIN, SIN, SIN, SIN, SIN, COS, SIN, SIN, SIN)
    compiler = Compiler()
    compiler.takes_the_place_of_xla(monkeypatch)
    key = key_of(whole, (), targets.of_device(jax.devices("cpu")[0]))
    assert failing_op_search.of_stages(stages, key, ()) == 5
    assert [len(each.operations) for each in compiler.tried[:2]] == [2, 3]
    assert all(len(each.operations) < 3 for each in compiler.tried[2:])
    assert failing_op_search.of_stages([each for each in stages if each is not stages[2]], key, ()) is None
