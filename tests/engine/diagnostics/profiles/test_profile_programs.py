"""The programs in a profile: where each of their operations comes from."""

import pytest

from tests.support.protobuf import written
from torch_xla._engine.diagnostics.profiles import profile_programs
from torch_xla._engine.diagnostics.profiles.profile_programs import Origin, ProfilePrograms

FRAMES = written(
    (1, "train.py"),
    (1, "net.py"),
    (2, "step"),
    (2, "forward"),
    (3, written((1, 2), (2, 2), (3, 31))),  # net.py:31 in forward
    (3, written((1, 1), (2, 1), (3, 7))),  # train.py:7 in step
    (4, written((1, 1))),
    (4, written((1, 2), (2, 1))),
)
NAMED = "jit(program)/forward/net/aten::relu/jit(relu)/max"


def test_what_is_inside_of_a_compiled_graph_was_recorded_as_the_graph() -> None:
    inside = Origin("step/compiled::forward_1/Net/Linear/aten::linear", None, "dot")
    assert (inside.recorded, inside.operator) == ("compiled::forward_1", "aten::linear")
    assert (inside.blocks, inside.modules_inside) == (["step"], ["Net", "Linear"])
    plain = Origin("step/Net/aten::linear", None, "dot")
    assert (plain.recorded, plain.operator) == ("aten::linear",) * 2
    assert (plain.blocks, plain.modules_inside) == (["step", "Net"], [])
    own = Origin("", None, "copy")
    assert (own.recorded, own.operator, own.blocks, own.modules_inside) == ("", "", [], [])


def instruction(name: str, opcode: str, *metadata: tuple[int, int | str]) -> bytes:
    return written((1, name), (2, opcode), (7, written(*metadata)), (35, 1))


def profile(name: str, *instructions: bytes, frames: bytes = FRAMES, plane: str = "/host:metadata") -> bytes:
    """A profile that keeps the HLO of one program."""
    computations = [(3, written((1, "main"), *((2, each) for each in instructions)))]
    module = written((1, "jit_program"), *computations, *([(17, frames)] if frames else []))
    stat = written((1, 1), (6, written((1, module))))
    entry = written((1, 7), (2, written((1, 7), (2, name), (5, stat))))
    return written((1, written((1, 0), (2, plane), (4, entry))))


def test_operators_lines_and_opcodes() -> None:
    content = profile(
        "jit_program(7)",
        instruction("max.1", "maximum", (2, NAMED), (15, 1)),
        instruction("fusion", "fusion", (2, "jit(program)/aten::sum/reduce"), (15, 2)),
        instruction("copy", "copy"),
        instruction("old", "add", (2, "jit(program)/add"), (3, "old.py"), (4, 12)),
    )
    assert ProfilePrograms(content).origins("jit_program", "7", ["max.1", "copy"]) == {
        "max.1": Origin("forward/net/aten::relu", ("net.py", 31, "forward"), "maximum"),
        "fusion": Origin("aten::sum", ("train.py", 7, "step"), "fusion"),
        "copy": Origin("", None, "copy"),
        "old": Origin("", ("old.py", 12, ""), "add"),
    }


def test_a_module_without_frames_has_no_lines() -> None:
    content = profile("jit_program(7)", instruction("max", "maximum", (2, NAMED), (15, 1)), frames=b"")
    found = ProfilePrograms(content).origins("jit_program", "7", ["max"])
    assert found["max"] == Origin("forward/net/aten::relu", None, "maximum")


def test_programs_are_kept_in_one_plane_only() -> None:
    two = ProfilePrograms(profile("a(1)", instruction("x", "add")) + profile("b(2)", instruction("y", "add")))
    assert set(two.origins("a", "1", ["x"])) == {"x"} and set(two.origins("b", "2", ["y"])) == {"y"}
    assert ProfilePrograms(profile("a(1)", instruction("x", "add"), plane="/device:TPU:0")).origins("a", "1", []) == {}
    assert ProfilePrograms(b"").origins("a", "1", ["x"]) == {}


LONG = "fusion" + ".clone" * 30


def test_a_program_of_another_number_is_found_by_the_names_of_its_operations() -> None:
    several = ProfilePrograms(
        profile("a(1)", instruction("add", "add"), instruction("other", "add", (2, "jit(a)/aten::add.1/add.1")))
        + profile("a(2)", instruction("add", "add"), instruction("add.1", "add"), instruction("big", "add"))
        + profile("a(3)", instruction(LONG, "fusion"), instruction("add", "add"))
        + profile("b(4)", *(instruction(name, "add") for name in ("add", "add.1", "big")))
    )
    assert set(several.origins("a", "1", ["add", "add.1"])) == {"add", "add.1", "big"}
    assert set(several.origins("a", "77", [LONG, "add"])) == {LONG, "add"}
    assert several.origins("a", "77", ["nowhere"]) == {} and several.origins("c", "1", ["add"]) == {}


def test_programs_that_did_not_run_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    origins = profile_programs._origins_of_module
    monkeypatch.setattr(profile_programs, "_origins_of_module", lambda module: read.append(module) or origins(module))
    many = [profile(f"jit_program({each})", instruction(f"add.{each}", "add")) for each in range(40)]
    programs = ProfilePrograms(b"".join(many))
    assert programs.origins("jit_program", "7", ["add.7"]) and programs.origins("jit_program", "77", ["add.9"])
    assert programs.origins("jit_program", "7", ["add.7"]) and len(read) == 2
