"""In a notebook: what a cell shows, an interrupt in the middle of a training, an error, a long compilation, processes.

`make test-frameworks` has a kernel; elsewhere these tests are skipped.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.frameworks

ROOT = Path(__file__).parents[1]

# The weights of 32 steps; `steps` counts the finished ones.
TRAINING = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)).to("xla")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batch = torch.linspace(-1, 1, 64 * 64).view(64, 64).to("xla")
steps = 0

def step():
    global steps
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    steps += 1
    return loss

first = step().item()
while True:
    step()
    if steps == 5:
        print("five steps", flush=True)
"""

PROCESSES = r"""
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

def reduced(index):
    total = xm.all_reduce(xm.REDUCE_SUM, torch.ones((), device="xla") * (xr.global_ordinal() + 1))
    print(f"process {index} has {total.item()}\n", end="", flush=True)

torch_xla.launch(reduced, start_method="fork")
"""


class Cells:
    """A kernel, and what its cells put out."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager, self.client = manager, client

    def run(self, code: str, at_text: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        """The result of a cell, its texts by stream, and its error: name, value and traceback."""
        found: dict[str, Any] = {"stdout": "", "stderr": ""}

        def note(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                found[content["name"]] += content["text"]
                at_text(content["text"])
            elif message["msg_type"] in ("execute_result", "display_data"):
                found["result"] = content["data"]
            elif message["msg_type"] == "error":
                found["error"] = (content["ename"], content["evalue"], "\n".join(content["traceback"]))

        self.client.execute_interactive(code, timeout=150, output_hook=note)
        return found


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    pytest.importorskip("ipykernel", reason="ipykernel is not installed here; `make test-frameworks` has it")
    started = pytest.importorskip("jupyter_client.manager")
    # Colours would separate the words of a traceback.
    home = tmp_path_factory.mktemp("home")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(home), "CPU_NUM_DEVICES": "2"}
    manager, client = started.start_new_kernel(
        env=environment, extra_arguments=["--InteractiveShell.colors=nocolor", "--HistoryManager.enabled=False"]
    )
    yield Cells(manager, client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_a_training_in_a_notebook(cells: Cells) -> None:
    assert cells.run("import torch\nimport torch_xla") == {"stdout": "", "stderr": ""}
    processes = cells.run(PROCESSES)  # before this process uses a device, which no fork of it could
    assert "error" not in processes, processes
    assert sorted(processes["stdout"].splitlines()) == ["process 0 has 3.0", "process 1 has 3.0"]

    shown = cells.run("x = torch.arange(6.0, device='xla').view(2, 3)\nx * 2")
    assert shown["result"] == {"text/plain": "tensor([[ 0.,  2.,  4.],\n        [ 6.,  8., 10.]], device='xla:0')"}

    interrupted = cells.run(TRAINING, lambda text: cells.manager.interrupt_kernel())
    assert interrupted["error"][0] == "KeyboardInterrupt" and "step()" in interrupted["error"][2]
    went_on = cells.run(
        "before = steps\nfor _ in range(20):\n    last = step()\nsteps - before, last.item() < first, x.sum()"
    )
    assert went_on["result"]["text/plain"] == "(20, True, tensor(15., device='xla:0'))", went_on

    wrong = cells.run("y = torch.ones(2, 3, device='xla')\nz = y @ y")
    name, value, traceback = wrong["error"]
    assert (name, value) == ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)")
    assert "----> 2 z = y @ y" in traceback and "line 2" in traceback, traceback
    assert cells.run("x[1, 2].item()")["result"] == {"text/plain": "5.0"}

    # A line that is written anew would leave all its forms in the notebook.
    patience = (
        "import torch_xla._engine.step.compile_progress as progress\nprogress.PATIENCE = progress.EVERY = 0.001\n"
    )
    assert cells.run(patience + "(torch.randn(9, 9, device='xla').cos() @ x.new_ones(9, 9)).sum().item() != 0") == {
        "stdout": "", "stderr": "", "result": {"text/plain": "True"}
    }  # fmt: skip
    told = cells.run("print(torch_xla.debug.sync_tax())")["stdout"]
    assert "item()" in told or ".item" in told, told
