"""`torch.xla` has each name of `torch.cuda` and `torch.xpu`, or says why not and what to use."""

from typing import Any

import pytest
import torch

from torch_xla._engine.dispatch.register.refused_names import REASONS

xla: Any = torch.xla  # type: ignore[attr-defined]
THEIRS = sorted({*torch.cuda.__all__, *torch.xpu.__all__})
# Names that only some of the supported releases of PyTorch have.
OF_OTHER_RELEASES = {
    "caching_allocator_disabled",
    "current_solver_handle",
    "export_dot",
    "export_graph_data",
    "graph_annotations",
}


@pytest.mark.parametrize("name", THEIRS)
def test_a_name_of_cuda_is_there_or_refused_with_a_reason(name: str) -> None:
    if name not in REASONS:
        assert hasattr(xla, name)
        return
    assert not hasattr(xla, name) and getattr(xla, name, None) is None  # as programs ask
    with pytest.raises(AttributeError, match=rf"torch\.xla\.{name} does not exist: \w.* \w.*\.") as error:
        getattr(xla, name)
    assert error.value.name == name


def test_no_name_is_refused_that_neither_module_has() -> None:
    assert REASONS.keys() <= {*THEIRS, *OF_OTHER_RELEASES}


def test_another_name_is_an_error_of_python() -> None:
    with pytest.raises(AttributeError, match=r"module 'torch.xla' has no attribute 'memory_alocated'"):
        xla.memory_alocated()
    with pytest.raises(ImportError):
        exec("from torch.xla import CUDAGraph")


def test_parts_can_be_imported() -> None:
    scope: dict[str, Any] = {}
    exec(
        "import torch.xla.memory\nfrom torch.xla.random import manual_seed\nfrom torch.xla.streams import Event", scope
    )
    assert torch.xla.memory.memory_allocated is xla.memory_allocated  # type: ignore[attr-defined]
    assert scope["Event"] is xla.Event and scope["manual_seed"] is xla.manual_seed
    assert set(xla.__all__) <= set(dir(xla))
