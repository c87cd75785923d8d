"""A release whose memory differs is refused with its version, and with what to install."""

import tomllib
from pathlib import Path

import pytest
import torch

from torch_xla._engine.compat.abi import supported_release
from torch_xla._engine.doctor.findings import WANTED

PROJECT = Path(__file__).parents[4] / "pyproject.toml"


def test_the_refusal_names_versions_and_remedy() -> None:
    with pytest.raises(RuntimeError) as caught:
        supported_release.refuse("the methods of device guards", "another one was called")
    text = str(caught.value)
    assert f"the methods of device guards of torch {torch.__version__} differ" in text
    assert "another one was called" in text and f"pip install 'torch{supported_release.SUPPORTED}'" in text


def test_pip_and_the_doctor_ask_for_the_same_releases() -> None:
    required = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    assert f"torch{supported_release.SUPPORTED}" == WANTED["torch"] and WANTED["torch"] in required
