"""PyTorch's reference functions import Dynamo only where something else does."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

from torch_xla._engine.compat.names import torch_refs

ROOT = Path(__file__).parents[4]

RECORDED = """
import sys
import torch
import torch.nn.functional as F
import torch_xla

x = torch.randn(4, 8, device="xla")
y = F.gelu(F.layer_norm(x * 2 + 1, (8,))).relu().exp().sub(3).softmax(1)
assert torch.isfinite(torch.where(y > 0, y, 0.0).mean()).item()
assert "torch._dynamo" not in sys.modules
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_operations_import_no_dynamo() -> None:
    run(RECORDED)


@pytest.mark.slow
def test_dynamo_leaves_the_functions_alone_once_it_is_imported() -> None:
    run(
        f"{RECORDED}\n"
        "import torch._refs\n"
        "add = torch._refs.add\n"
        "while '__dynamo_disable' not in vars(add):\n"
        "    add = add.__wrapped__\n"
        "ours = vars(add)['__dynamo_disable']\n"
        "import torch._dynamo\n"
        "torch._refs.add(torch.ones(2, device='meta'), 1)\n"
        "assert vars(add)['__dynamo_disable'] is not ours\n"
        "assert vars(add)['__dynamo_disable']._torchdynamo_disable\n"
        "compiled = torch.compile(lambda x: torch._refs.add(x, 1), backend='openxla')\n"
        "assert compiled(torch.ones(2, device='xla')).tolist() == [2, 2]\n"
    )


def test_a_release_whose_wrapper_looks_elsewhere_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def decorate(function: object) -> object:
        def wrapper() -> object:
            return getattr(function, "__kept_from_dynamo", None)

        return wrapper

    monkeypatch.setattr(torch_refs, "compile_of_torch", types.SimpleNamespace(_disable_dynamo=decorate))
    monkeypatch.setattr(torch_refs, "_leave_alone", None)
    torch_refs.call_references_without_dynamo()
