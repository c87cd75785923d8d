"""Every read of a value is in the file that the settings name, and the file is summed up as at the end of a program."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import torch_xla
from torch_xla._engine.diagnostics.logs import switches
from torch_xla.debug import frame_parser_util as frames


def look(x: torch.Tensor) -> None:
    assert torch.equal(x, x)


def test_reads_are_appended_as_they_happen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "reads.ptxla"
    x = torch.ones(3).to("xla")
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FNTRACKER_FILE", str(file))
        patch.setenv("PT_XLA_DEBUG_MAX_FRAME", "2")
        switches.apply_settings()
        for _ in range(3):
            look(x)
        x.tolist()
    switches.apply_settings()
    look(x)  # no listener any more
    read = frames.parse_frames(file.read_text().splitlines())
    assert [(each.operator, each.calls, each.early) for each in read] == [("equal", 1, 1)] * 3 + [("_to_copy", 1, 0)]
    line = look.__code__.co_firstlineno + 1
    assert read[0].frames[0] == f"look ({__file__}:{line})" and len(read[0].frames) == 2
    frames.process_frames(str(file))
    printed = capsys.readouterr().out
    assert 'FRAME (count=3):\nUnlowered Op: "equal"\nEarly evaluations of the recorded graph: 3\n' in printed
    assert f"Python Frames:\n  look ({__file__}:{line})\n  test_reads_are" in printed
    assert printed.index('"equal"') < printed.index('"_to_copy"')
    torch_xla.sync()


@pytest.mark.parametrize(
    ("operator", "read"),
    [
        ("_local_scalar_dense", lambda x: x.sum().item()),
        ("_local_scalar_dense", lambda x: 1 if x.sum() else 0),
        ("equal", lambda x: torch.equal(x, x + 1)),
        ("nonzero", lambda x: x.nonzero()),
        ("index", lambda x: x[x > 0]),
        ("_to_copy", lambda x: (x + 1).cpu()),
        ("_to_copy", lambda x: str(x + 1)),
        ("copy_", lambda x: torch.ones(3).copy_(x + 1)),
    ],
)
def test_a_read_has_the_name_of_the_operator_that_the_program_calls(
    operator: str, read: Callable[[torch.Tensor], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "reads.ptxla"
    x = torch.ones(3).to("xla")
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FNTRACKER_FILE", str(file))
        switches.apply_settings()
        read(x)
    switches.apply_settings()
    found = frames.parse_frames(file.read_text().splitlines())
    assert {each.operator for each in found} == {operator}
    assert all(f"<lambda> ({__file__}:" in "".join(each.frames) for each in found)
