"""Two tensors that show one storage differently are found, wherever they are."""

from collections.abc import Callable

import pytest
import torch

from torch_xla._engine.transfer.shared_memory import refuse_shared_views

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "part": lambda x: x[1:],
    "order": lambda x: x.t(),
    "dtype": lambda x: x.view(torch.complex32),
    "conjugate": lambda x: x.conj(),
}


@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_found(name: str, device: str) -> None:
    x = torch.ones(2, 3, dtype=torch.complex64, device=device)
    if name == "dtype":
        x = torch.ones(2, 3, device=device)
        other = x.view(torch.int32)
    else:
        other = VIEWS[name](x)
    with pytest.raises(
        RuntimeError, match=r"^two tensors are views of one storage: one of shape \[2, 3\], torch.*Clone"
    ):
        refuse_shared_views({"a": [x], "b": (1, other)})


def test_one_tensor_twice_and_separate_memory_are_fine() -> None:
    x = torch.ones(2, 3, device="xla")
    refuse_shared_views([x, {"again": x}, x.detach(), x.clone(), torch.ones(2, 3), x[1:].clone()])
