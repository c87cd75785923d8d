"""A TPU stores whole tiles: sizes that its compiler reported for arrays of these layouts."""

import pytest

from torch_xla._engine.planning.tiled_layouts import padded

# Dimensions, layout as XLA prints it, elements stored.
REPORTED = [
    ((), ":T(128)", 128), ((5,), "0:T(128)", 128), ((1025,), "0:T(1024)", 2048), ((512,), "0:T(512)(128)(2,1)", 512),
    ((3, 5), "1,0:T(4,128)", 512), ((10, 130), "1,0:T(8,128)", 4096), ((10, 130), "1,0:T(8,128)(2,1)", 4096),
    ((10, 130), "0,1:T(8,128)", 136 * 128), ((50257, 768), "1,0:T(8,128)", 50264 * 768),
    ((3, 5, 7, 2), "3,2,1,0:T(8,128)", 15 * 1024),
    ((2, 300), "1,0:T(2,128)S(1)", 2 * 384),
]  # fmt: skip


@pytest.mark.parametrize(("dims", "layout", "elements"), REPORTED)
def test_partial_tiles_take_whole_ones(dims: tuple[int, ...], layout: str, elements: int) -> None:
    assert padded(dims, layout) == elements


def test_a_layout_without_tiles_has_no_padding() -> None:
    assert padded((3, 5), "1,0") == 15 and padded((3, 5), "1,0:S(5)") == 15
