"""Save a step to a file: what was computed, from which inputs, and what the device returned.

The file is PyTorch's own archive of tensors beside one JSON text, and is read with `weights_only`: opening one runs
nothing of it.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from ... import dtypes
from ...ir.graph import Graph
from ...metrics.user_lines import NOWHERE, Line
from ...tensor.upload import from_numpy
from . import step_inspection
from .graph_json import decode, encode
from .op_by_op import walk
from .step_inspection import Run

FORMAT = "torch_xla captured step"
VERSION = 1

NOT_A_STEP = (
    "{path} is not a captured step: {reason}. One is made by `with torch_xla.debug.capture_step('step.pt'): ...` "
    "around a step."
)


@dataclass(frozen=True, slots=True)
class CapturedProgram:
    """One program of a step. Tensors are on the CPU, with the dtypes they had on the device."""

    graph: Graph
    lines: list[Line | None]
    numbers: list[float | int]
    inputs: list[Tensor]
    outputs: list[Tensor]
    results: dict[int, Tensor]  # by slot, each operator run by itself on the device; empty if that was not asked for


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """Contents of a file: the programs in the order in which they ran, and where that was."""

    programs: list[CapturedProgram]
    made_with: dict[str, str]


@contextmanager
def capturing(path: str | os.PathLike[str], every_result: bool) -> Iterator[None]:
    """Write what the block computes to `path` at its end, unless it raises."""
    entries: list[dict[str, object]] = []
    tensors: dict[str, Tensor] = {}

    def inspect(run: Run) -> None:
        _add(run, f"{len(entries)}", every_result, entries, tensors)

    with step_inspection.inspecting(inspect):
        yield
    header = {"format": FORMAT, "version": VERSION, "made_with": _made_with(), "programs": entries}
    torch.save({"header": json.dumps(header), "tensors": tensors}, path)


def _made_with() -> dict[str, str]:
    target = step_inspection.target_in_use()
    return {
        "torch": str(torch.__version__),
        "jax": jax.__version__,
        "device": f"{target.platform} ({target.kind})",
        "dtypes": dtypes.mode() or "as PyTorch's",
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _add(run: Run, name: str, every_result: bool, entries: list[dict[str, Any]], tensors: dict[str, Tensor]) -> None:
    for index, array in enumerate(run.inputs):
        tensors[f"{name}.input.{index}"] = _on_host(array)
    for index, array in enumerate(run.outputs):
        tensors[f"{name}.output.{index}"] = _on_host(array)
    # PyTorch cannot draw the same random numbers: those of the device are always kept.
    if every_result or any(operation.plan.draws for operation in run.graph.operations):
        for stop in walk(run.graph, run.inputs, run.numbers, run.keys, run.program.target):
            if every_result or stop.operation.plan.draws:
                for part, result in enumerate(stop.results):
                    tensors[f"{name}.result.{stop.operation.first_output + part}"] = _on_host(result)
    entries.append(
        {
            "graph": encode(run.graph),
            "numbers": [number if abs(number) < float("inf") else repr(number) for number in run.numbers],
            "lines": [list(line or NOWHERE) for line in run.lines],
        }
    )


def _on_host(array: jax.Array) -> Tensor:
    return from_numpy(np.array(array))


def load(path: str | os.PathLike[str]) -> CapturedStep:
    """Read a file that `capturing` wrote. Raises `ValueError` if it is none, or of a later version."""
    name = os.fspath(path)
    try:
        content = torch.load(name, map_location="cpu", weights_only=True)
        header = json.loads(content["header"])
        tensors: dict[str, Tensor] = content["tensors"]
    except FileNotFoundError:
        raise
    except Exception as error:  # a file that is no archive may fail in any way inside PyTorch
        # PyTorch's message also explains unsafe loading, which does not help here.
        first = str(error).partition(". ")[0]
        raise ValueError(NOT_A_STEP.format(path=name, reason=f"{type(error).__name__}: {first}")) from error
    if header.get("format") != FORMAT:
        raise ValueError(NOT_A_STEP.format(path=name, reason="it was written by something else"))
    if header["version"] > VERSION:
        raise ValueError(
            f"{name} was written by a later torch_xla: its format is number {header['version']}, this one reads up to "
            f"{VERSION}. Update torch_xla to replay it."
        )
    programs = [_program(entry, f"{index}", tensors) for index, entry in enumerate(header["programs"])]
    return CapturedStep(programs, header["made_with"])


def _program(entry: dict[str, Any], name: str, tensors: dict[str, Tensor]) -> CapturedProgram:
    graph = decode(entry["graph"])
    lines = [tuple(line) for line in entry["lines"]]
    prefix = f"{name}.result."
    return CapturedProgram(
        graph,
        [None if line == NOWHERE else line for line in lines],  # type: ignore[misc]
        [float(number) if isinstance(number, str) else number for number in entry["numbers"]],
        [tensors[f"{name}.input.{index}"] for index in range(len(graph.inputs))],
        [tensors[f"{name}.output.{index}"] for index in range(len(graph.outputs))],
        {int(key.removeprefix(prefix)): tensor for key, tensor in tensors.items() if key.startswith(prefix)},
    )
