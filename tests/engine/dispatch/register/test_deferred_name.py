"""Where PyTorch itself drives a GPU, "xla" gets its name when it is first used. Each case is a process of its own."""

import subprocess
import sys
from typing import Any

import pytest

from torch_xla._engine.dispatch.register import deferred_name, torch_patches

# A PyTorch that is built for a GPU of this machine, as far as it is asked.
BEGIN = """
import os
os.environ.pop("PJRT_DEVICE", None)
import pathlib, torch
exists = pathlib.Path.exists
pathlib.Path.exists = lambda self, *args, **kwargs: str(self) == "/dev/nvidia0" or exists(self, *args, **kwargs)
torch.version.cuda = "13.0"
import torch_xla
pathlib.Path.exists = exists
assert torch._C._get_privateuse1_backend_name() == "privateuseone"
"""

FIRST_USES = {
    "a factory": 'x = torch.ones(3, device="xla")',
    "a factory on an ordinal": 'x = torch.ones(3, device="xla:0")',
    "random numbers": 'x = torch.randn(3, device="xla").mul(0).add(1)',
    "a range": 'x = torch.arange(3, device="xla").clamp(1, 1).float()',
    "a list": 'x = torch.tensor([1.0, 1.0, 1.0], device="xla")',
    "a move": 'x = torch.ones(3).to("xla")',
    "a move to an ordinal": 'x = torch.ones(3).to("xla:0")',
    "a move and a dtype": 'x = torch.ones(3, dtype=torch.float64).to("xla", torch.float32)',
    "a device from before": 'device = torch.device("xla"); x = torch.ones(3).to(device)',
    "an ordinal from before": 'device = torch.device("xla", 0); y = torch.ones(3).to(device); x = y.to(device)',
    "a module": 'x = torch.nn.Linear(3, 1).to("xla").weight.detach()[0] * 0 + 1',
    "a module on it": 'x = torch.nn.Linear(3, 1, device="xla").weight.detach()[0] * 0 + 1',
    "strides": 'x = torch.empty_strided((3,), (1,), device="xla").fill_(1)',
    "like another": 'x = torch.ones_like(torch.zeros(3), device="xla")',
    "asked for": "x = torch.ones(3, device=torch_xla.device())",
    "asked for in the old way": "import torch_xla.core.xla_model as xm; x = torch.ones(3, device=xm.xla_device())",
    "autocast": 'with torch.autocast("xla"): pass\nx = torch.ones(3, device="xla")',
    "a default": 'torch.set_default_device("xla"); x = torch.ones(3)',
    "a seed": 'torch.xla.manual_seed(0); x = torch.ones(3, device="xla")',
    "a generator": 'torch.Generator(device="xla").manual_seed(1); x = torch.ones(3, device="xla")',
    "a loaded file": """
import io
file = io.BytesIO()
torch.save(torch.ones(3), file)
file.seek(0)
x = torch.load(file, map_location="xla")
""",
    "a scaler": 'import torch_xla.amp; torch_xla.amp.GradScaler(); x = torch.ones(3, device="xla")',
    "a stream": 'torch.xla.current_stream(); x = torch.ones(3, device="xla")',
}
END = """
assert torch._C._get_privateuse1_backend_name() == "xla"
assert x.device == torch.device("xla:0"), x.device
assert x.cpu().tolist() == [1, 1, 1] and torch.accelerator.current_accelerator().type == "xla"
w = torch.ones(3, device="xla", requires_grad=True)
(w * x).sum().backward()
assert w.grad.cpu().tolist() == [1, 1, 1]
"""


# Each first use in a copy of a process that has imported the package.
IN_COPIES = """
import os, traceback
failed = []
for name, program in {programs!r}.items():
    child = os.fork()
    if not child:
        try:
            exec(program, dict(globals()))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
assert not failed, failed
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_first_use_takes_the_name() -> None:
    run(BEGIN + IN_COPIES.format(programs={name: f"{use}\n{END}" for name, use in FIRST_USES.items()}))


def test_unused_it_is_not_the_accelerator_of_pytorch() -> None:
    run(
        BEGIN
        + """
import torch_xla.core.xla_model, torch_xla.runtime, torch_xla.distributed.xla_multiprocessing
w = torch.ones(3, requires_grad=True)
(w * 2).sum().backward()
torch.accelerator.is_available()
assert torch.accelerator.current_accelerator().type == "cuda"
assert torch._C._get_privateuse1_backend_name() == "privateuseone"
"""
    )


def test_who_chooses_a_platform_has_the_name_at_once() -> None:
    program = BEGIN.replace('os.environ.pop("PJRT_DEVICE", None)', 'os.environ["PJRT_DEVICE"] = "CPU"')
    run(program.replace('"privateuseone"', '"xla"'))


def test_a_backward_pass_on_another_accelerator_is_told_why_it_fails() -> None:
    def fails(text: str) -> Any:
        def run_backward(*args: Any) -> None:
            raise RuntimeError(text)

        return run_backward

    with pytest.raises(RuntimeError, match="INTERNAL ASSERT") as found:
        torch_patches._beside_ours(fails("opt_ready_stream && opt_parent_stream INTERNAL ASSERT FAILED"), ())
    assert found.value.__notes__ == [deferred_name.BESIDE_ANOTHER]
    with pytest.raises(RuntimeError, match="no graph") as found:
        torch_patches._beside_ours(fails("no graph"), ())
    assert not hasattr(found.value, "__notes__")
