"""Host computations of a step are repeated by lines of Python, and take effect when the step has run."""

import torch

from torch_xla._engine.compiled.replay.scalar_program import HostPart, HostProgram


def part(lines: list[str], count: torch.Tensor, told: dict[int, str] | None = None) -> HostPart:
    given = {"t0": count, "add_": torch.Tensor.add_}
    return HostPart(lines, told or {}, {0: "v1"}, given, {"t0": id(count)}, [count])


LINES = ["add_(t0, 1)", "v1 = 2.0 * t0.item()"]


def test_numbers_are_computed_from_copies_and_settled_afterwards() -> None:
    count = torch.tensor(3.0)
    program = HostProgram(part(LINES, count), [0.0, 7.0], [1, 0])
    assert program.compute() == (7.0, 8.0) and count.item() == 3.0
    assert program.compute() == (7.0, 8.0)  # nothing was settled
    for _ in program.settled():
        pass
    assert count.item() == 4.0 and program.compute() == (7.0, 10.0)


def test_why_numbers_cannot_be_computed_is_told() -> None:
    count = torch.tensor(-1.0)
    by_zero = HostProgram(part(["add_(t0, 1)", "v1 = 1.0 / t0.item()"], count), [0.0], [0])
    assert by_zero.compute() == "the numbers that the host computes raise ZeroDivisionError" and count.item() == -1.0
    another = HostProgram(part(["v1 = 1"], count), [0.0], [0])
    assert another.compute() == "a number that the host computes is of another kind"
    branch = HostProgram(part(["if not (t0.item() > 0): return 'another way'", "v1 = 1.0"], count), [0.0], [0])
    assert branch.compute() == "another way"


def test_parts_are_compared_line_by_line() -> None:
    count = torch.tensor(0.0)
    one = part(LINES, count)
    assert one.differs(part(list(LINES), count)) == ""
    otherwise = "it computes something else on the host from call to call"
    assert one.differs(None) == one.differs(part(LINES[:1], count)) == otherwise
    assert one.differs(part(["add_(t0, 2)", LINES[1]], count, {0: "it counts otherwise"})) == "it counts otherwise"
    assert one.differs(part(LINES, torch.tensor(0.0))) == otherwise  # another tensor
    one.release()
    assert one.given == {} and one.tensors == [] and one.differs(part(LINES, count)) == ""
