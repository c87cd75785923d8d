"""Two runs are compared tensor by tensor."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_xla.debug.model_comparator as mc
from torch_xla._engine.diagnostics.values import tensor_snapshots
from torch_xla.utils.checkpoint_tagger import CheckpointTagger


@pytest.fixture(autouse=True)
def unset() -> Iterator[None]:
    yield
    tensor_snapshots._chosen = tensor_snapshots._UNSET


def run(folder: Path, device: str, mistake: float = 0.0) -> None:
    mc.configure(folder)
    x = torch.linspace(-1, 1, 6, device=device)
    mc.save("input", x, step=0)
    y = x.sin()
    y[2] += mistake
    mc.save("layers/0", y, step=0)
    mc.save("mean", y.mean())


def test_equal_runs_have_no_differences(tmp_path: Path) -> None:
    run(tmp_path / "a", "cpu")
    run(tmp_path / "b", "xla")
    assert mc.compare(tmp_path / "a", tmp_path / "b") == ""
    assert (tmp_path / "a" / "0" / "layers.0.pt").exists() and (tmp_path / "b" / "mean.pt").exists()


def test_the_first_tensor_that_differs_comes_first(tmp_path: Path) -> None:
    run(tmp_path / "a", "cpu")
    run(tmp_path / "b", "xla", mistake=0.25)
    lines = mc.compare(tmp_path / "a", tmp_path / "b").splitlines()
    assert lines[0] == "0/layers.0.pt:"
    assert lines[1] == "  1 of 6 elements differ, by 0.25 at most:"
    assert lines[2].startswith("    [2]: -0.198669") and " and 0.05133" in lines[2]
    assert lines[3] == "mean.pt:"


def test_other_shapes_dtypes_and_nans(tmp_path: Path) -> None:
    assert mc.compare_tensors(torch.ones(2), torch.ones(3)) == "  shapes differ: [2] and [3]\n"
    assert (
        mc.compare_tensors(torch.ones(2), torch.ones(2).half()) == "  dtypes differ: torch.float32 and torch.float16\n"
    )
    nan = torch.tensor([float("nan")])
    assert mc.compare_tensors(nan, nan) == ""
    assert "1 of 1 elements differ, by inf at most" in mc.compare_tensors(nan, torch.ones(1))
    text = mc.compare_tensors(torch.zeros(40), torch.ones(40), max_diffs=3)
    assert text.splitlines()[0] == "  40 of 40 elements differ, by 1 at most:"
    assert text.splitlines()[-1] == "    … and 37 more"


def test_tensors_of_one_run_only_are_named(tmp_path: Path) -> None:
    run(tmp_path / "a", "cpu")
    run(tmp_path / "b", "cpu")
    (tmp_path / "a" / "mean.pt").rename(tmp_path / "a" / "other.pt")
    text = mc.compare(tmp_path / "a", tmp_path / "b")
    assert text == f"other.pt: only in {tmp_path / 'a'}\nmean.pt: only in {tmp_path / 'b'}\n"


def test_the_setting_names_the_folder_until_the_program_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mc.save("nowhere", torch.ones(1))
    monkeypatch.setenv("MODELCMP_SAVEDIR", str(tmp_path))
    mc.save("somewhere", torch.ones(1))
    mc.configure(None)
    mc.save("nowhere", torch.ones(1))
    assert [file.name for file in tmp_path.iterdir()] == ["somewhere.pt"]


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    run(tmp_path / "a", "cpu")
    run(tmp_path / "b", "cpu", mistake=1.0)

    command = [sys.executable, "-m", "torch_xla.debug.model_comparator", str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.startswith("0/layers.0.pt:\n")
    assert mc.main([str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    assert mc.main([str(tmp_path / "a"), str(tmp_path / "missing")]) == 2


def test_a_checkpoint_that_no_tag_means_is_removed(tmp_path: Path) -> None:
    first, second = tmp_path / "1.pt", tmp_path / "2.pt"
    first.touch()
    second.touch()
    tagger = CheckpointTagger()
    tagger.tag("latest", str(first))
    tagger.tag("best", str(first))
    tagger.tag("latest", str(second))
    assert first.exists()
    tagger = CheckpointTagger.load_from_json(tagger.save_to_json())
    tagger.tag("best", str(second))
    assert not first.exists() and second.exists()
    tagger.tag("best", str(second))
    assert second.exists() and tagger.tags == {"latest": str(second), "best": str(second)}
