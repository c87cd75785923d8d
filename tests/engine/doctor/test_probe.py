"""The stages of the doctor's probe: each says when it begins, and what it found or why it failed."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_xla._engine.doctor import probe


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
def test_every_stage_ends_where_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    for stage in (probe.torch, probe.jax, probe.torch_xla, probe.device, probe.computation):
        probe.attempt(stage.__name__, stage)
        begun, ended = said(capsys)
        assert begun == {"stage": stage.__name__, "state": "started"}
        assert ended["stage"] == stage.__name__ and ended["state"] == "ended"
        if stage is probe.torch:
            assert ended["version"] == torch.__version__ and ended["privateuse1"] == "xla"
        if stage is probe.device:
            assert len(ended["names"]) == torch.xla.device_count() and ended["bytes"] >= 0
    assert ended["right"] is True


def failing(error: BaseException) -> Callable[[], dict[str, Any]]:
    def look() -> dict[str, Any]:
        raise error

    return look


@pytest.mark.parametrize(
    ("error", "text", "missing"),
    [
        (RuntimeError("jaxlib\nis too old"), "RuntimeError: jaxlib\nis too old", False),
        (ModuleNotFoundError("No module named 'jax'"), "ModuleNotFoundError: No module named 'jax'", True),
        (SystemExit(3), "SystemExit: 3", False),
    ],
)
def test_a_stage_that_fails_is_told_and_ends_the_probe(
    error: BaseException, text: str, missing: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        probe.attempt("jax", failing(error))
    assert ended.value.code == 0
    assert said(capsys)[1] == {"stage": "jax", "state": "failed", "error": text, "missing": missing}


def test_the_computation_is_right_and_names_the_folder_of_programs() -> None:
    found = probe.computation()
    assert found["right"] and found["seconds"] > 0 and found["kept_in"] == ""  # tests keep none
