"""Lists of other libraries have `xla` once they are imported, before or after this package."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from torch_xla._engine.compat import import_hooks
from torch_xla._engine.distributed import framework_lists

NAME = "transformers.distributed.utils"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library with the list of Transformers, in the place of an installed one."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / "transformers" / "distributed"
    folder.mkdir(parents=True)
    for file in (folder.parent / "__init__.py", folder / "__init__.py"):
        file.write_text("")
    (folder / "utils.py").write_text('DISTRIBUTED_BACKEND_MAP = {"cuda": "nccl"}\n')
    monkeypatch.syspath_prepend(tmp_path)
    return folder / "utils.py"


def forget() -> None:
    for name in (NAME, "transformers.distributed", "transformers"):
        sys.modules.pop(name, None)


def test_a_list_that_is_imported_later_gets_its_entry(library: Path) -> None:
    module = importlib.import_module(NAME)
    assert module.DISTRIBUTED_BACKEND_MAP == {"cuda": "nccl", "xla": "xla"}
    assert module.__spec__ is not None
    forget()


def test_a_list_that_is_there_gets_its_entry(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if each is not import_hooks._finder])
    module = importlib.import_module(NAME)
    assert "xla" not in module.DISTRIBUTED_BACKEND_MAP
    framework_lists.complete()
    framework_lists.complete()
    assert module.DISTRIBUTED_BACKEND_MAP["xla"] == "xla" and sys.meta_path.count(import_hooks._finder) == 1
    forget()


@pytest.mark.parametrize("text", ["", "DISTRIBUTED_BACKEND_MAP = ()\n", 'DISTRIBUTED_BACKEND_MAP = {"xla": "own"}\n'])
def test_a_library_without_the_list_or_with_an_entry_stays_as_it_is(library: Path, text: str) -> None:
    library.write_text(text)
    found = getattr(importlib.import_module(NAME), "DISTRIBUTED_BACKEND_MAP", None)
    assert found in (None, (), {"xla": "own"})
    forget()


GENERATION = """
class GenerationMixin:
    def _valid_auto_compile_criteria(self, model_kwargs, generation_config):
        config = generation_config.compile_config
        return config is not None and config._compile_all_devices
"""


@pytest.mark.parametrize("device", ["xla", "cpu", "meta"])
@pytest.mark.parametrize("asked", [True, False])
def test_generation_compiles_on_xla_where_it_is_asked_to(library: Path, device: str, asked: bool) -> None:
    folder = library.parent.parent / "generation"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "utils.py").write_text(GENERATION)
    module = importlib.import_module("transformers.generation.utils")
    config = SimpleNamespace(_compile_all_devices=None) if asked else None
    model = module.GenerationMixin()
    model.device = torch.device(device)
    found = model._valid_auto_compile_criteria({}, SimpleNamespace(compile_config=config))
    assert bool(found) is (asked and device == "xla")
    assert config is None or config._compile_all_devices is None  # the caller's own stays as it is
    for name in ("transformers.generation.utils", "transformers.generation"):
        sys.modules.pop(name, None)
    forget()
