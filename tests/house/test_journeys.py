"""How many of our functions and files a call passes through: what a reader follows, and what the host's time goes to.

The numbers are upper bounds. Lower them when a journey gets shorter.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ENGINE, ROOT, imports_of, name_of, nodes_of, none, python_files

# Calls and files of each journey.
JOURNEYS = {"sync": (26, 13), "item": (10, 8), "replay": (63, 26), "eager": (22, 11)}

# Counts calls of Python functions whose module is ours; a generated function, such as a dataclass's `__init__`, too.
PROGRAM = """
import json, sys
import torch, torch_xla

def counted(call):
    seen = []
    def note(frame, event, argument):
        if event == "call" and frame.f_globals.get("__name__", "").startswith("torch_xla"):
            seen.append((frame.f_globals["__name__"], frame.f_code.co_name))
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    inlined = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
    calls = [each for each in seen if each[1] not in inlined]  # from Python 3.12 on they are no calls
    return len(calls), len({module for module, _ in calls}), calls

x = torch.ones(8, 8, device="xla")
weight = torch.ones(8, 8, device="xla")
found = {}
torch_xla.sync()
for _ in range(6):
    result = (x * 1.5 + x.sin()).sum()
    found["sync"] = counted(torch_xla.sync)
    found["item"] = counted(result.item)

@torch_xla.compile(replay=True)
def step(x):
    weight.mul_(0.5).add_(x)
    return weight.sum()

for _ in range(8):
    step(x)
found["replay"] = counted(lambda: step(x))
torch_xla.experimental.eager_mode(True)
for _ in range(6):
    x + weight
found["eager"] = counted(lambda: x + weight)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[int, int, list[tuple[str, str]]]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("journey", JOURNEYS)
def test_a_journey_is_as_short_as_it_was(
    journey: str, found: dict[str, tuple[int, int, list[tuple[str, str]]]]
) -> None:
    calls, files, names = found[journey]
    assert calls > 5, names  # it is measured at all
    assert (calls, files) <= JOURNEYS[journey] and files <= JOURNEYS[journey][1], (calls, files, names)


# The functions that commit several stores at once; `uncollected` and `lock` are for calls of JAX and for threads.
COMMITTING = {"run_through", "stores", "without_collecting"}


def test_few_files_commit_several_stores_at_once() -> None:
    using = {
        path
        for path in python_files("torch_xla")
        for _, names in imports_of(path)
        for name in names
        if name.startswith("torch_xla._engine.atomic.") and name.rpartition(".")[2] in COMMITTING
    }
    assert len(using) <= 14, sorted(map(name_of, using))


def test_no_hook_is_set_from_outside_of_its_module() -> None:
    """A room that wants to be called by a lower one registers in `metrics/observers.py`."""
    none(
        f"{name_of(path)}:{line}: {text} is set from another module: register an observer, or call a function"
        for path in python_files("torch_xla/_engine")
        for line, text in sorted(foreign_stores(path) - ALLOWED.get(path.relative_to(ENGINE).as_posix(), set()))
    )


# Plain values, which are no hooks: a flag that a setting turns on, and the queue that the history keeps.
ALLOWED: dict[str, set[tuple[int, str]]] = {}


def foreign_stores(path: Path) -> set[tuple[int, str]]:
    """Attributes of imported modules of ours that a file assigns, by line."""
    modules = {
        alias.asname or alias.name
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
        if (path.parents[node.level - 1] / (node.module or "").replace(".", "/") / f"{alias.name}.py").exists()
    }
    return {
        (node.lineno, ast.unparse(target))
        for node in nodes_of(path)
        if isinstance(node, ast.Assign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in modules
    }
