"""Weight normalization, compared with PyTorch on the CPU."""

import pytest
import torch

from tests.support.rules import check_rule
from tests.support.signed_zeros import check_signs
from tests.support.ways_to_run import WAYS
from torch_xla._engine.lowering.norms import weight_norm  # noqa: F401

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((4, 3, 2), 0), ((4, 3, 2), 2), ((5,), 0), ((4, 0), 0)], ids=str)
def test_a_weight_and_its_gradients_agree_with_pytorch(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    v, g, grad = (
        torch.randn(shape),
        torch.randn([n if i == dim else 1 for i, n in enumerate(shape)]),
        torch.randn(shape),
    )
    check_rule(aten._weight_norm_interface.default, v.to(dtype), g.to(dtype), dim)
    norms = aten._weight_norm_interface.default(v.to(dtype), g.to(dtype), dim)[1]
    check_rule(aten._weight_norm_interface_backward.default, grad.to(dtype), v.to(dtype), g.to(dtype), norms, dim)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_have_the_signs_of_the_cpu(dim: int, way: str) -> None:
    def function(v: torch.Tensor, g: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
        norms = aten._weight_norm_interface(v, g, dim)[1]
        return list(aten._weight_norm_interface_backward(grad, v, g, norms, dim))

    v, g = torch.tensor([[-0.0, 1.0, 1.0], [1.0, -0.0, 2.0], [-1.0, -1.0, -1.0]]), torch.tensor([1.0, -1.0, 0.5])
    for zero in (0.0, -0.0):
        check_signs(way, function, v, g.view((3, 1) if dim == 0 else (1, 3)), torch.full((3, 3), zero))
