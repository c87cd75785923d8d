"""Operations of the device have the modules that their operators were recorded in, whenever the program was made."""

import torch

import torch_xla
from torch_xla._engine.diagnostics.profiles.started_programs import OperatorPlace, StartedProgram, modules_of
from torch_xla._engine.step.pending_graph import graph_of


def run_of(value: torch.Tensor, lines: list[int], time: float, *scopes: str) -> StartedProgram:
    """Return a run of the operations pending for `value`; `lines` have recorded them, in these modules."""
    graph = graph_of([value]).graph
    named = [("train.py", line, "step") for line in lines]
    return StartedProgram(graph, named, time, [tuple(scope.split("/")) for scope in scopes])


def ones() -> torch.Tensor:
    made = torch.ones(3, device="xla")
    torch_xla.sync()  # no operation of the graphs
    return made


def at(operator: str, line: int, time: float) -> tuple[OperatorPlace, float]:
    return OperatorPlace(operator, ("train.py", line)), time


def test_operations_of_a_line_have_the_modules_of_its_operators_in_their_order() -> None:
    x = ones()
    first = run_of(x.sin().cos().sin(), [1, 2, 1], 10, "A/B", "A", "A/C")
    later = run_of(x.sin().cos().sin(), [1, 2, 1], 50, "D", "E", "F")
    ran = [at("aten::sin", 1, time) for time in (60, 11, 12, 61)] + [at("aten::cos", 2, 13), at("aten::cos", 2, 62)]
    for runs in ([first, later], [later, first]):
        assert modules_of(ran, runs) == [("D",), ("A", "B"), ("A", "C"), ("F",), ("A",), ("E",)]
    twice = [at("aten::cos", 2, time) for time in (1, 2, 3, 4)]
    assert modules_of(twice, [first, later]) == [("A",), ("A",), ("E",), ("E",)]


def test_the_operator_alone_decides_where_no_line_agrees() -> None:
    run = run_of(ones().sin().sin(), [1, 2], 10, "A", "B")
    assert modules_of([at("aten::sin", 8, 11), at("aten::sin", 8, 12), at("copy.1", 1, 13)], [run]) == [
        ("A",),
        ("B",),
        None,
    ]


def test_a_run_in_no_module_names_none() -> None:
    run = StartedProgram(graph_of([ones().sin()]).graph, [], 10)
    assert modules_of([at("aten::sin", 1, 11)], [run]) == [None] and not modules_of([], [run])
