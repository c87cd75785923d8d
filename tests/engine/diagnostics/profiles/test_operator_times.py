"""Which operators took the time of the device, summed up from a profile."""

import os
from pathlib import Path

import pytest

from tests.support.protobuf import written
from torch_xla._engine.diagnostics.profiles.operator_times import OperatorTime, OperatorTimes, operator_times

STATS = ("hlo_op", "hlo_module", "program_id")
MICROSECOND = 10**6  # in picoseconds


def instruction(name: str, opcode: str, operator: str) -> bytes:
    return written((1, name), (2, opcode), (7, written((2, operator), (3, "train.py"), (4, 7))))


def program(number: int, *instructions: bytes) -> bytes:
    """The HLO of a program, as the entry of a plane."""
    module = written((1, "jit_program"), (3, written((1, "main"), *((2, each) for each in instructions))))
    stat = written((1, 9), (6, written((1, module))))
    return written((1, number), (2, written((1, number), (2, f"jit_program({number})"), (5, stat))))


def event(operation: str, number: int, microseconds: int) -> bytes:
    stats = [
        (4, written((1, place), (5, text))) for place, text in enumerate((operation, "jit_program", str(number)), 1)
    ]
    return written((1, 1), (2, 0), (3, microseconds * MICROSECOND), *stats)


def profile(programs: list[bytes], events: list[bytes]) -> bytes:
    names = [(5, written((1, place), (2, written((1, place), (2, name))))) for place, name in enumerate(STATS, 1)]
    events_of = written((1, 1), (2, "ops"), *((4, each) for each in events))
    kinds = (4, written((1, 1), (2, written((1, 1), (2, "op")))))
    device = written((1, 1), (2, "/device:ABACUS:0"), (3, events_of), kinds, *names)
    metadata = written((1, 2), (2, "/host:metadata"), *((4, each) for each in programs))
    return written((1, device), (1, metadata))


TWO = [
    program(
        1, instruction("dot", "dot", "jit(p)/aten::mm/dot"), instruction("loop", "while", "jit(p)/aten::rnn/while")
    ),
    program(2, instruction("add", "add", "jit(p)/aten::add/add"), instruction("copy", "copy", "")),
]


def times(folder: Path, programs: list[bytes], events: list[bytes]) -> list[tuple[str, float, int]]:
    (folder / "one.xplane.pb").write_bytes(profile(programs, events))
    return [(row.operator, round(row.milliseconds, 9), row.count) for row in operator_times(folder).rows]


def test_times_are_summed_by_operator_the_longest_first(tmp_path: Path) -> None:
    events = [event("dot", 1, 30), event("dot", 1, 50), event("add", 2, 500), event("copy", 2, 1)]
    assert times(tmp_path, TWO, events) == [("aten::add", 0.5, 1), ("aten::mm", 0.08, 2), ("", 0.001, 1)]


def test_what_lasts_as_long_as_what_is_inside_it_is_not_counted_twice(tmp_path: Path) -> None:
    assert times(tmp_path, TWO, [event("loop", 1, 100), event("dot", 1, 60)]) == [("aten::mm", 0.06, 1)]


def test_a_number_that_is_another_programs_is_seen_through(tmp_path: Path) -> None:
    assert times(tmp_path, TWO, [event("add", 1, 5)]) == [("aten::add", 0.005, 1)]
    assert times(tmp_path, TWO, [event("add", 77, 5)]) == [("aten::add", 0.005, 1)]
    assert times(tmp_path, [], [event("add", 1, 5)]) == [("", 0.005, 1)]


def test_the_latest_profile_is_read(tmp_path: Path) -> None:
    for age, (name, operation) in enumerate((("new", "add"), ("old", "dot"))):
        file = tmp_path / name / "x.xplane.pb"
        file.parent.mkdir()
        file.write_bytes(profile(TWO, [event(operation, 1, 5)]))
        os.utime(file, (1000 - age, 1000 - age))
    found = operator_times(tmp_path)
    assert found.rows[0].operator == "aten::add" and found.file == str(tmp_path / "new" / "x.xplane.pb")
    with pytest.raises(FileNotFoundError, match="There is no profile in .*empty"):
        operator_times(tmp_path / "empty")


def test_the_table_is_cut_off() -> None:
    rows = tuple(OperatorTime(f"aten::op{i}", ("a.py", i, "f") if i else None, 2.0, 3) for i in range(27))
    lines = str(OperatorTimes("f", rows)).splitlines()
    assert len(lines) == 27 and lines[-1].split() == ["4.000", "…", "2", "more"]
    assert lines[1].split() == ["2.000", "3.7", "3", "aten::op0"] and lines[2].endswith("a.py:1 in f")
    assert str(OperatorTimes("f", (OperatorTime("", None, 0.0, 1),))).endswith("(XLA)")
