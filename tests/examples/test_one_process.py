"""Examples of one process."""

import re
from pathlib import Path

import pytest

from tests.support.scripts import run


@pytest.mark.slow
def test_the_digits_are_learnt_as_on_the_cpu_and_a_picture_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "digits.png"
    printed = run("digits.py", "--out", str(picture))
    accuracies = [float(number) for number in re.findall(r"([\d.]+)%", printed)]
    assert len(accuracies) == 2 and min(accuracies) > 90
    assert "CPU fallbacks 0" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_transformer_learns_text_with_three_compiles_of_its_step() -> None:
    printed = run("chargpt.py")
    before, after = map(float, re.findall(r"([\d.]+) (?:before|after)", printed))
    assert after < 0.8 * before
    compiles = re.search(r"compiles of the training step (\d+)", printed)
    assert compiles is not None and 1 <= int(compiles[1]) <= 3
    assert "CPU fallbacks 0" in printed
    written = printed.split("writes after it ---\n")[1].split("\n---\n")[0]
    assert len(written) == len("\n\nThe value of the expression") + 20


@pytest.mark.slow
def test_the_comparison_in_the_attention_is_found_with_its_line_and_count_and_gone_when_repaired() -> None:
    printed = run("early_evaluation.py")
    before, after = printed.split("--- attention compares with `is`")
    counts = [int(count) for count in re.findall(r"FRAME \(count=(\d+)\):\n.*Unlowered Op: \"equal\"", before)]
    assert sorted(counts) == [6, 12, 12, 12]  # six steps: each encoder and the decoder twice, the decoder's other once
    assert len(re.findall(r"Frames:\n.*  forward \(.*early_evaluation\.py:\d+\)\n", before)) == 4
    assert '"equal"' not in after


@pytest.mark.slow
def test_text_is_written_by_token_replayed_and_as_one_program() -> None:
    printed = run("decoding.py")
    assert "all ways wrote the same: True" in printed
    assert re.findall(r"for this text (\d+)", printed) == ["0", "0", "0"]
    assert "drawn letters differ from the most likely: True" in printed
    assert "CPU fallbacks 0" in printed
