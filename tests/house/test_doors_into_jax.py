"""No garbage is collected in calls of JAX that take the traceback of the stack.

Before Python 3.12 garbage may be collected while a traceback is taken, and a finalizer that calls JAX then corrupts
memory (`atomic`). Rules of `lowering/` call JAX while it traces, and so inside of one of these calls.
"""

import ast
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax._src import compiler
from jax._src.array import ArrayImpl

import torch_xla
from tests.house.source import ENGINE, name_of, none, python_files, tree_of
from torch_xla._engine.compat.names import jax as private
from torch_xla._engine.compat.names import jax_starters

# Functions that make, move or wait for arrays, trace, compile or load.
CALLS = {
    "jax.device_put", "jax.block_until_ready", "jax.effects_barrier", "jax.make_array_from_callback",
    "jax.make_array_from_single_device_arrays", "jax.make_array_from_process_local_data", "jax.dlpack.from_dlpack",
    "jax.numpy.asarray", "jax.numpy.array", "jax.numpy.copy", "jnp.asarray", "jnp.array", "jnp.copy", "jax.make_jaxpr",
    "jax.eval_shape", "jax.vjp", "jax.export.export", "_jax.batched_device_put", "client.deserialize_executable",
}  # fmt: skip
METHODS = {"block_until_ready", "trace", "compile"}
# Modules whose functions of those names are others.
OTHERS = {"re", "torch", "client", "scanning", "_buckets"}


def inner(path: Path) -> str:
    return path.relative_to(ENGINE).as_posix()


def functions_of(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from functions_of(node.body)


def calls_of(path: Path) -> Iterator[tuple[str, ast.FunctionDef, ast.Call]]:
    for function in functions_of(tree_of(path).body):
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = ast.unparse(node.func)
                receiver = ast.unparse(node.func.value)
                if name in CALLS or (node.func.attr in METHODS and receiver not in OTHERS):
                    yield name, function, node


def is_uncollected(function: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "uncollected" for each in function.decorator_list)


# Functions that only such a one calls.
INSIDE = {
    "runtime/buffers.py:_spread": "buffers.put",
    "compat/names/jax.py:put": "buffers.put",
    "compile/composites.py:_call": "what function.lowered traces",
    "compile/symbolic_length.py:computed": "what function.lowered traces, and what growing_sizes._made traces",
    "compile/symbolic_length.py:_function": "what computed traces",
    "compile/jax_function.py:_carrier": "what function.lowered traces",
    "interop/jax_functions.py:__call__": "what _trace_anew traces",
    "export/standalone_loader.py:exported": "modules.exported; and processes without this package",
}
# Threads that wait and do nothing else: while they wait, others may collect garbage.
WAITING = {
    "step/waits_among_processes.py:_run": "for other processes",
    "transfer/batch_reads.py:call_when_ready": "in front of a callback",
    "diagnostics/waiting/host_time_profile.py:_run": "to measure the device",
}
# Files with functions that JAX traces.
TRACED = ("lowering/", "interop/xla_builder_ops.py")

FILES = [path for path in python_files("torch_xla/_engine") if not inner(path).startswith(TRACED)]


def test_jax_is_called_where_no_garbage_is_collected() -> None:
    listed = {*INSIDE, *WAITING}
    calls = [(path, *call) for path in FILES for call in calls_of(path)]
    none(
        f"{name_of(path)}:{call.lineno}: {function.name}() calls {name}: go through `runtime/buffers.py`, or make "
        "it `@uncollected`, or list here which such function alone calls it"
        for path, name, function, call in calls
        if not is_uncollected(function) and f"{inner(path)}:{function.name}" not in listed
    )
    assert listed <= {f"{inner(path)}:{function.name}" for path, _, function, _ in calls}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bool]]:
    """Return, for each call of JAX's own Python functions, whether garbage might be collected."""
    found: dict[str, list[bool]] = {}

    def note(name: str, answer: Any = None) -> Any:
        found.setdefault(name, []).append(gc.isenabled())
        return answer

    def watch(owner: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: note(name, real)(*a, **k))

    watch(private._jax, "batched_device_put")
    watch(jax, "block_until_ready")
    watch(compiler, "backend_compile_and_load")
    value = ArrayImpl._value
    monkeypatch.setattr(ArrayImpl, "_value", property(lambda array: note("_value", value.fget(array))))
    starter = jax_starters.starter

    def started(executable: Any) -> Any:
        start = starter(executable)
        return None if start is None else lambda calls: map(lambda found: note("run", found), start(calls))

    monkeypatch.setattr(jax_starters, "starter", started)
    return found


def test_transfers_compilations_runs_and_waits_collect_no_garbage(seen: dict[str, list[bool]]) -> None:
    x = torch.arange(71.0).to("xla")
    y = torch.utils.dlpack.from_dlpack(torch.ones(71)).to("xla")
    for number in (2.0, 3.0, 4.0):  # an argument from the second on
        x = x * number + y
        torch_xla.sync(wait=True)
    assert x[70].item() == 70 * 24 + 12 + 4 + 1
    assert np.asarray(x.bfloat16().cpu().float())[0] == 17
    torch_xla.experimental.eager_mode(True)
    try:
        (x + 7).tolist()
    finally:
        torch_xla.experimental.eager_mode(False)
    assert set(seen) == {"batched_device_put", "block_until_ready", "backend_compile_and_load", "_value", "run"}
    assert not any(any(each) for each in seen.values()), seen


def test_frames_of_threads_are_taken_at_one_place() -> None:
    found = [inner(path) for path in python_files("torch_xla") if "_current_frames" in path.read_text()]
    assert found == ["atomic.py"], "use atomic.frames_of_threads, which collects no garbage meanwhile"
