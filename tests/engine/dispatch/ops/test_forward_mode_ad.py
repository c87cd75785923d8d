"""Tangents have the layout of their primals: size, strides and storage size as PyTorch makes them on the CPU."""

from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

ATEN = torch.ops.aten
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x,
    "turned": lambda x: x.t(),
    "part": lambda x: x[1:, 1:],
    "repeated": lambda x: x[0].expand(4, 3),
    "one": lambda x: x[1, 2],
}


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("name", LAYOUTS)
def test_zeros_have_the_layout_of_another_tensor_behind_their_batch(name: str, batch: int) -> None:
    def made(device: str) -> torch.Tensor:
        like = torch.ones(5, 7, 2, device=device, dtype=torch.float64)
        other = LAYOUTS[name](torch.arange(6.0, device=device).view(2, 3))
        return ATEN._new_zeros_with_same_feature_meta(like, other, self_num_batch_dims=batch)  # type: ignore[no-any-return]

    ours, theirs = made("xla"), made("cpu")
    assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
    assert ours.storage_offset() == theirs.storage_offset() and not ours.any().item()
    assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()


def test_whether_two_have_the_same_room() -> None:
    for device in ("cpu", "xla"):
        x = torch.zeros(2, 3, device=device)
        same = ATEN._has_same_storage_numel
        assert same(x, x.t()) and same(x[0], x) and not same(x, torch.zeros(5, device=device))
        assert same(x, torch.zeros(6, dtype=torch.float64, device=device))


def test_a_tangent_that_nobody_gave_is_zero() -> None:
    made = ATEN._efficientzerotensor([2, 3], dtype=torch.float64, device="xla")
    assert made.dtype is torch.float64 and made.tolist() == [[0] * 3] * 2


@pytest.mark.parametrize("name", sorted(LAYOUTS.keys() - {"repeated"}))
def test_a_primal_of_any_layout_carries_a_tangent(name: str) -> None:
    def tangent(device: str) -> torch.Tensor:
        primal = LAYOUTS[name](torch.arange(6.0, device=device).view(2, 3))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(primal, torch.ones_like(primal, memory_format=torch.contiguous_format))
            return forward_ad.unpack_dual(dual * dual).tangent.cpu()  # type: ignore[union-attr]

    assert tangent("xla").equal(tangent("cpu"))
