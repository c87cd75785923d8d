"""Each look at what is recorded is a file of its own."""

from pathlib import Path

import pytest
import torch

from torch_xla.debug import graph_saver


def test_a_graph_is_written_to_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    y = torch.ones(67).to("xla") * 2.5
    folder = tmp_path / "new" / "folder"
    for language in ("", "text", "dot", "hlo"):
        monkeypatch.setenv("SAVE_GRAPH_FMT", language)
        graph_saver.save_tensors_graph(folder, "loss", [y])
    files = sorted(folder.iterdir(), key=lambda file: int(file.stem.partition("-")[2]))
    assert [file.suffix for file in files] == [".text", ".text", ".dot", ".hlo"]
    assert all(file.name.startswith("loss-") for file in files)
    assert [file.read_text().split()[0] for file in files] == ["IR", "IR", "digraph", "HloModule"]
    monkeypatch.setenv("SAVE_GRAPH_FMT", "png")
    with pytest.raises(ValueError, match="^SAVE_GRAPH_FMT is 'png'; it must be one of text, dot, hlo$"):
        graph_saver.save_tensors_graph(folder, "loss", [y])
