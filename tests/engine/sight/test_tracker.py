"""Every read of a value is in the file that the settings name, and the file is summed up as at the end of a program."""

from pathlib import Path

import pytest
import torch

import torch_xla
from torch_xla._engine.sight import switches
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
        switches.settle()
        for _ in range(3):
            look(x)
        x.tolist()
    switches.settle()
    look(x)  # nobody listens any more
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


def test_many_places_are_cut_off() -> None:
    reads = [frames.Read("equal", (f"forward (unit.py:{number})",)) for number in range(23)]
    report = frames.create_report(reads)
    assert report.count("FRAME (count=1)") == 20 and "\nand 3 more places\n" in report
    assert frames.create_report([]) == ""


@pytest.mark.parametrize("line", ["nothing", "{}", '{"operator": "equal"}', "[1]"])
def test_another_file_is_refused(line: str) -> None:
    with pytest.raises(ValueError) as error:
        frames.parse_frame_content(line)
    assert str(error.value) == f"not a line that XLA_FNTRACKER_FILE wrote: {line!r}"
