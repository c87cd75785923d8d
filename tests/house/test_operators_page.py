"""docs/operators.md says how every operator runs now."""

import importlib.util
from types import ModuleType

import pytest
import torch

from tests.house.source import ROOT


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("coverage_page", ROOT / "tools" / "coverage.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_of_these_rules() -> None:
    tool = _tool()
    written = tool.PAGE.read_text()
    if f"PyTorch {torch.__version__.partition('+')[0]} " not in written:
        pytest.skip("the page is of another release of PyTorch")
    assert tool.page(tool.overloads()) == written, "run `python tools/coverage.py --write`"
