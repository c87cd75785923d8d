"""Resizing with antialiasing, compared with PyTorch on the CPU."""

from typing import Any

import pytest
import torch

from tests.support.rules import apply_rule, check_rule
from torch_xla._engine.lowering.images import antialiasing  # noqa: F401

aten = torch.ops.aten
NAMES = [name for name in ("bilinear", "bicubic", "lanczos") if hasattr(aten, f"_upsample_{name}2d_aa")]
SIZES = [((11, 9), (4, 5)), ((5, 4), (11, 9)), ((7, 6), (7, 3)), ((6, 5), (1, 1)), ((1, 3), (4, 2)), ((40, 3), (3, 30))]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("align_corners", [False, True])
def test_images_and_gradients_agree_with_pytorch(name: str, sizes: Any, align_corners: bool) -> None:
    forward, backward = (getattr(aten, f"_upsample_{name}2d_aa{suffix}").default for suffix in ("", "_backward"))
    inputs, outputs = sizes
    image, grad = torch.randn(2, 3, *inputs).double(), torch.randn(2, 3, *outputs).double()
    given = [(size + 0.3) / old for size, old in zip(outputs, inputs, strict=True)]
    for scales in ((None, None), given):
        settings = (list(outputs), align_corners, *scales)
        ours = apply_rule(forward, image, *settings, jit=False)
        torch.testing.assert_close(ours, forward(image, *settings))
        settings = (list(outputs), [2, 3, *inputs], align_corners, *scales)
        ours = apply_rule(backward, grad, *settings, jit=False)
        torch.testing.assert_close(ours, backward(grad, *settings))


@pytest.mark.parametrize("name", NAMES)
def test_narrow_floats_are_resized_in_float32(name: str) -> None:
    """PyTorch refuses them here on the CPU: its float64 is the truth."""
    op = getattr(aten, f"_upsample_{name}2d_aa").default
    image = torch.rand(1, 2, 30, 20)
    exact = op(image.double(), [7, 9], False, None, None)
    torch.testing.assert_close(apply_rule(op, image, [7, 9], False, None, None).double(), exact, rtol=1e-5, atol=1e-6)
    narrow = image.bfloat16()
    exact = op(narrow.double(), [7, 9], False, None, None).bfloat16()
    torch.testing.assert_close(apply_rule(op, narrow, [7, 9], False, None, None).bfloat16(), exact)
    check_rule(op, torch.rand(0, 2, 30, 20), [7, 9], False, None, None)


@pytest.mark.parametrize("name", NAMES[:2])
def test_bytes_are_rounded_between_the_passes(name: str) -> None:
    op = getattr(aten, f"_upsample_{name}2d_aa").default
    image = torch.randint(0, 256, (1, 3, 40, 30), dtype=torch.uint8)
    ours = apply_rule(op, image, [13, 17], False, None, None).int()
    # PyTorch's weights of bytes have 16 bits: now and then a pixel is rounded the other way, once in each pass.
    assert (ours - op(image, [13, 17], False, None, None).int()).abs().max() <= 1
