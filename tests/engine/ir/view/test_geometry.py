"""A geometry says of itself what PyTorch says of a tensor with these strides."""

import torch
from hypothesis import given, settings

from tests.support.views import ViewCase, dense_geometries, geometry_of, permuted_geometry, view_cases
from torch_xla._engine.ir.view import Geometry


@given(view_cases(smallest=0))
@settings(max_examples=150, deadline=None)
def test_a_geometry_describes_itself_as_torch_does(case: ViewCase) -> None:
    tensor, view = case.tensor, case.view
    assert view.numel == tensor.numel()
    assert view.is_contiguous() == tensor.is_contiguous()
    assert view.is_dense() == torch.ops.aten.is_non_overlapping_and_dense.default(tensor)
    assert view.extent == (int(tensor.max()) + 1 if tensor.numel() else 0)


@given(dense_geometries(smallest=0))
@settings(max_examples=100, deadline=None)
def test_a_base_is_dense_and_its_memory_order_makes_it_contiguous(base: Geometry) -> None:
    assert base.is_dense()
    order = base.memory_order()
    assert sorted(order) == list(range(len(base.size)))
    assert Geometry(tuple(base.size[d] for d in order), tuple(base.stride[d] for d in order)).is_contiguous()


def test_contiguous_strides_are_those_of_torch() -> None:
    for size in [(), (3,), (2, 3, 4), (2, 0, 4), (0,), (1, 1)]:
        assert Geometry.contiguous(size) == geometry_of(torch.empty(size))


def test_strides_of_dimensions_of_one_do_not_matter() -> None:
    odd = Geometry((1, 3, 1), (7, 1, 0))
    assert odd.is_contiguous() and odd.is_dense()
    assert odd.memory_order() == (0, 1, 2)
    assert odd.same_elements(Geometry.contiguous((1, 3, 1)))
    assert not odd.same_elements(Geometry((1, 3, 1), (7, 1, 0), offset=1))
    assert not odd.same_elements(Geometry((1, 3, 1), (7, 2, 0)))
    assert not odd.same_elements(Geometry.contiguous((3, 1, 1)))


def test_nothing_is_the_same_as_nothing_of_the_same_size() -> None:
    assert Geometry((0, 3), (9, 9), 5).same_elements(Geometry((0, 3), (3, 1)))
    assert not Geometry((0, 3), (3, 1)).same_elements(Geometry((3, 0), (1, 1)))
    assert Geometry((0, 3), (9, 9), 5).extent == 0


def test_channels_last_lies_in_memory_with_the_channels_innermost() -> None:
    image = torch.empty(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert geometry_of(image).memory_order() == (0, 2, 3, 1)
    assert geometry_of(image) == permuted_geometry((2, 3, 4, 5), (0, 2, 3, 1))
    assert geometry_of(image).is_dense() and not geometry_of(image).is_contiguous()
