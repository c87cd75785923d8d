"""Objects of imports are frozen where nothing of the program can be among them."""

import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from torch_xla._engine import imported_objects

ROOT = Path(__file__).parents[2]
FROZEN, OLD = "assert gc.get_freeze_count() > 200_000", "assert gc.get_freeze_count() == 0"


def run(program: str, *arguments: str) -> None:
    command = [sys.executable, *arguments, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("import gc\nLIMIT = 3\nclass Own: pass\nimport torch_xla", FROZEN),
        ("import gc, runpy\nimport torch_xla.experimental", FROZEN),
        pytest.param("import gc\nown = []\nimport torch_xla", OLD, marks=pytest.mark.slow),
        pytest.param("import gc\ndef late():\n    import torch_xla\nlate()", OLD, marks=pytest.mark.slow),
        pytest.param("import gc\ngc.disable()\nimport torch_xla", OLD, marks=pytest.mark.slow),
    ],
)
def test_objects_are_frozen_if_imports_made_them_all(program: str, outcome: str) -> None:
    # Young objects would be looked at by the next collection.
    run(f"{program}\n{outcome}\nassert gc.isenabled() == (gc.get_count()[0] < 20_000)\n")


@pytest.mark.slow
def test_what_the_program_has_frozen_stays_frozen() -> None:
    run("import gc\nown = []\ngc.freeze()\nfrozen = gc.get_freeze_count()\nimport torch_xla\n"
        "assert 0 < gc.get_freeze_count() <= frozen\n")  # fmt: skip


@pytest.mark.slow
def test_garbage_of_the_program_is_found_and_its_finalizers_run_at_the_end(tmp_path: Path) -> None:
    said = tmp_path / "said"
    run(
        "import gc, sys, weakref\n"
        "import torch_xla\n"
        "class Circle:\n"
        "    def __init__(self, name):\n"
        "        self.own, self.name = self, name\n"
        "    def __del__(self, open=open):\n"
        f"        with open({str(said)!r}, 'a') as file: file.write(self.name)\n"
        "Circle('a')\n"
        "gc.collect()\n"
        "kept = Circle('b')\n"
    )
    assert said.read_text() == "ab"


def test_objects_that_the_program_has_frozen_are_found() -> None:
    class Own:
        pass

    own = Own()
    gc.freeze()
    assert not any(each is own for each in gc.get_objects())
    assert any(each is own for each in imported_objects.alive())
    later = Own()
    imported_objects.freeze()
    assert not any(each is later for each in imported_objects.alive())


def test_a_process_started_by_multiprocessing_runs_only_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    def frame(module: str, function: str, back: object, **names: object) -> SimpleNamespace:
        code = SimpleNamespace(co_name=function)
        return SimpleNamespace(f_globals={"__name__": module, **names}, f_code=code, f_back=back)

    start = frame("__main__", "<module>", None, spawn_main=run)
    prepare = frame("multiprocessing.spawn", "prepare", frame("multiprocessing.spawn", "spawn_main", start))
    program = frame("__mp_main__", "<module>", frame("runpy", "run_path", prepare), torch=gc, main=run)
    assert imported_objects._is_import(program)
    assert not imported_objects._is_import(frame("__mp_main__", "<module>", prepare, model=object()))
    assert not imported_objects._is_import(frame("_pytest.python", "import_module", start))
