"""The description of memory in an out-of-memory error."""

import numpy as np
import torch

import torch_xla
from torch_xla._engine.compile.executable_key import key_of
from torch_xla._engine.compile.program import Program
from torch_xla._engine.diagnostics.memory import largest_in_errors
from torch_xla._engine.metrics.observers import observers
from torch_xla._engine.step.pending_graph import graph_of


def test_errors_tell_of_it() -> None:
    assert observers.explain_memory is largest_in_errors.explained


def test_the_largest_tensors_come_with_their_lines_and_names() -> None:
    kept = [torch.ones(700, 1000, device="xla") + number for number in range(2)]  # the large ones
    torch_xla.sync(wait=True)
    rows = largest_in_errors.explained(None, ()).splitlines()
    assert rows[0] == "The largest tensors that live:" and len(rows) <= 6
    (row,) = [row for row in rows if "[700, 1000] float32" in row]
    assert "5.60 MB  2 × [700, 1000] float32 kept[0], kept[1] made at" in row and "test_largest_in_errors.py:" in row
    assert kept[0].device.type == "xla"


def test_the_largest_values_on_the_way_are_those_of_the_program() -> None:
    x = torch.ones(300, 400).to("xla")
    found = graph_of([(x @ x.T).exp() @ x])
    program = Program(found.graph, key_of(found.graph, (), found.device.target_of(found.graph)))
    program.compile_for(found.numbers)
    text = largest_in_errors.explained(program, found.numbers)
    assert "The largest values that the program computes on the way:\n" in text
    on_the_way = text.partition("on the way:\n")[2].splitlines()
    size = np.float32().nbytes * 300 * 300 / 1000
    assert 0 < len(on_the_way) <= 5 and any(f"{size:.2f} kB" in row and "f32[300,300]" in row for row in on_the_way)
