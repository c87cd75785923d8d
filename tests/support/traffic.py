"""The communication of programs on four virtual CPU devices: parts of tests/engine/diagnostics/sharding."""

import contextlib
import io
import logging
from typing import Any

import numpy as np
import torch

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.support import parts
from torch_xla._engine.diagnostics.sharding import communication
from torch_xla._engine.metrics import events
from torch_xla.distributed.spmd import debugging


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _mesh() -> xs.Mesh:
    return xs.Mesh(np.arange(4), (4,), ("x",))


def what_is_sent_is_told_and_what_nobody_marked_is_warned_of() -> None:
    torch_xla.debug.clear_history()
    heard = _Heard()
    communication.logger.addHandler(heard)
    communication._LARGE = 1024
    a, w = torch.randn(64, 8).to("xla"), torch.randn(8, 16).to("xla")
    xs.mark_sharding(a, _mesh(), ("x", None))
    torch_xla.sync()
    b = torch.tanh(a @ w)
    c = b @ b.t()
    xs.mark_sharding(c, _mesh(), ("x", None))
    torch_xla.sync()
    expected = torch.tanh(a.cpu() @ w.cpu())
    torch.testing.assert_close(c.cpu(), expected @ expected.t())
    (sent,) = [each for each in torch_xla.debug.collectives() if each.collectives]
    (gathered,) = sent.collectives
    assert (gathered.kind, gathered.devices, gathered.count, gathered.bytes) == ("all-gather", 4, 1, 64 * 16 * 4)
    assert gathered.line is not None and gathered.line[0].endswith("traffic.py") and sent.devices == 4
    (copied,) = sent.copied
    assert copied.bytes == 64 * 16 * 4 and not copied.is_result
    (warning,) = heard.texts
    assert "comes together on each device: mark it" in warning and "traffic.py" in warning
    table = torch_xla.debug.explain_collectives()
    assert "1 × all-gather among 4" in table and "! f32[" in table
    communication.logger.removeHandler(heard)


def results_left_whole_beside_divided_ones_are_told() -> None:
    communication._LARGE = 1024
    found: list[Any] = []
    events.listen(found.append)
    a = torch.randn(64, 16).to("xla")
    xs.mark_sharding(a, _mesh(), ("x", None))
    torch_xla.sync()
    b = a * 3
    torch_xla.sync()
    events.unlisten(found.append)
    compiled = [event for event in found if isinstance(event, events.Compilation)][-1]
    (parted,) = compiled.program.parts(compiled.numbers)[0][0].output_shardings
    everywhere = compiled.program.target.everywhere
    assert communication._left_whole(compiled.program, [parted], compiled.lines) == []
    (copied,) = communication._left_whole(compiled.program, [everywhere], compiled.lines)
    assert copied.is_result and copied.shape == "float32[64, 16]" and "though a value like it is divided" in str(copied)
    assert b.shape == (64, 16)


def a_layer_gathers_its_input_once_for_its_result_and_the_gradient_of_its_weight() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64)).to("xla")
    for index in (0, 2):
        xs.mark_sharding(layers[index].weight, _mesh(), ("x", None))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    x = torch.randn(2, 8, 64).to("xla")
    torch_xla.sync()
    torch_xla.debug.clear_history()
    layers(x).square().sum().backward()
    optimizer.step()
    torch_xla.sync()
    (sent,) = torch_xla.debug.collectives()
    gathered = [each for each in sent.collectives if each.kind == "all-gather"]
    of_the_input = 2 * 8 * 128 * 4
    assert max(each.largest_bytes for each in gathered) == of_the_input
    assert sum(each.bytes for each in gathered) < 1.5 * of_the_input  # the others are of biases


def a_tensor_is_drawn_as_it_lies() -> None:
    x = torch.randn(8, 4).to("xla")
    xs.mark_sharding(x, xs.Mesh(np.arange(4), (2, 2), ("a", "b")), ("b", None))
    y = torch.randn(8, 4).to("xla")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        table = debugging.visualize_tensor_sharding(x, use_color=False)
        whole = debugging.visualize_tensor_sharding(y, use_color=False)
    assert table.splitlines()[1].split("│")[1].strip() == "CPU 0,2" and "CPU *" in whole
    assert printed.getvalue() == f"{table}\n{whole}\n"


if __name__ == "__main__":
    xr.use_spmd()
    parts.run_all(dict(globals()))
