"""View operators make views by PyTorch's own kernels, record nothing, and stay inside the storage."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_xla._engine.dispatch import aten_views
from torch_xla._engine.tensor.device import device_at


def shown(tensor: torch.Tensor) -> Any:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.tolist()


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "aten::as_strided": lambda x: x.as_strided((2, 2), (3, 1), 1),
    "aten::view": lambda x: x.view(3, 4),
    "aten::view.dtype": lambda x: x.view(torch.int16),
    "aten::_reshape_alias": lambda x: torch.ops.aten._reshape_alias(x, [4, 3], [3, 1]),
    "aten::unfold": lambda x: x.unfold(1, 3, 2),
    "aten::view_as_real": lambda x: torch.view_as_real(torch.complex(x, -x)),
    "aten::view_as_complex": lambda x: torch.view_as_complex(x.view(2, 3, 2)),
    "aten::_conj": lambda x: torch.complex(x, x).conj(),
}


@pytest.mark.parametrize("name", aten_views.NAMES)
def test_it_shows_what_it_shows_on_the_cpu(name: str) -> None:
    host = torch.arange(12.0).view(2, 6)
    assert shown(VIEWS[name](host.to("xla"))) == shown(VIEWS[name](host))


def test_nothing_is_recorded_and_the_memory_is_shared() -> None:
    x = torch.arange(12.0).to("xla")
    before = list(device_at(0).tape.code)
    made = [x.view(3, 4), x.as_strided((2, 2), (3, 1), 1), x.unfold(0, 4, 4), x.view(torch.int32)]
    assert device_at(0).tape.code == before
    assert {each.untyped_storage()._cdata for each in made} == {x.untyped_storage()._cdata}


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [((5,), (1,), None), ((2, 2), (3, 1), 1), ((1,), (1,), -1), ((1,), (-1,), 0), ((2,), (1, 1), 0), ((1,), (1,), 4)],
    ids=range(6),
)
def test_what_leaves_the_storage_is_refused_as_on_the_cpu(size: Any, stride: Any, offset: int | None) -> None:
    told = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as refusal:
            torch.arange(4.0, device=device).as_strided(size, stride, offset)
        told.append(str(refusal.value).partition("\n")[0])
    assert told[0] == told[1]


def test_nothing_may_be_shown_from_anywhere() -> None:
    x = torch.arange(4.0, device="xla")
    assert x.as_strided((0,), (1,), 99).shape == x.as_strided((0, 3), (9, 9), 0).shape[:1]


def test_bounds_count_in_the_dtype_that_is_shown() -> None:
    x = torch.arange(4.0).to("xla").view(torch.int16)
    assert x.as_strided((8,), (1,)).shape == (8,)
    with pytest.raises(
        RuntimeError, match="itemsize 2 requiring a storage size of 18 are out of bounds for storage of"
    ):
        x.as_strided((9,), (1,))


def test_a_view_made_in_inference_mode_is_refused_where_it_is_used() -> None:
    with torch.inference_mode():
        x = torch.arange(4.0).to("xla")
        beyond = x.as_strided((5,), (1,))
        for use in (lambda: beyond + 1, lambda: beyond.fill_(0), lambda: beyond.tolist()):
            with pytest.raises(RuntimeError, match=r"setStorage: sizes \[5\], .* out of bounds for storage of size 16"):
                use()
        assert x.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dynamic", [False, True])
def test_dynamo_traces_geometries(dynamic: bool) -> None:
    def shown_twice(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((3, x.shape[0] // 3), (2, 1)).t() * 2

    compiled = torch.compile(shown_twice, backend="openxla", fullgraph=True, dynamic=dynamic)
    for n in (12, 9):
        x = torch.arange(float(n))
        assert compiled(x.to("xla").requires_grad_()).tolist() == shown_twice(x).tolist()


def test_transforms_and_fake_tensors_pass_any_geometry_on() -> None:
    x = torch.arange(6.0).to("xla")
    assert torch.func.vmap(lambda row: row.as_strided((2,), (1,)))(x.view(2, 3)).tolist() == [[0, 1], [3, 4]]
    assert torch.func.grad(lambda x: x.as_strided((2,), (1,), 1).sum())(x).tolist() == [0, 1, 1, 0, 0, 0]
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 24"):
        torch.func.grad(lambda x: x.as_strided((7,), (1,)).sum())(x)
    with FakeTensorMode():
        assert torch.empty(6, device="xla").as_strided((9,), (1,)).shape == (9,)


def test_autograd_goes_through_geometries() -> None:
    gradients = []
    for device in ("cpu", "xla"):
        x = torch.arange(6.0, device=device, requires_grad=True)
        assert x.as_strided((2,), (1,))._base is x
        (gradient,) = torch.autograd.grad(x.as_strided((3, 2), (2, 1)).t().square().sum(), x)
        gradients.append(gradient.tolist())
    assert gradients[0] == gradients[1]


def test_in_place_the_tensor_itself_becomes_the_view() -> None:
    for device in ("cpu", "xla"):
        x = torch.arange(6.0, device=device).view(2, 3)
        kept = x.transpose_(0, 1).unsqueeze_(0)
        assert kept is x and shown(x)[:3] == ((1, 3, 2), (3, 1, 3) if device == "xla" else x.stride(), 0)
        with pytest.raises(RuntimeError, match="out of bounds"):
            x.as_strided_((4, 4), (4, 1))
        assert x.tolist() == [[[0, 3], [1, 4], [2, 5]]]


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.t(), lambda x: x[0], lambda x: x[:0], lambda x: x[0, 0]])
def test_negatives_are_views(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    host = torch.arange(6.0).view(2, 3)
    ours = make(host.to("xla"))
    negative = torch._neg_view(ours)
    assert negative.is_neg() and negative.tolist() == torch._neg_view(make(host)).tolist()
    ours.add_(1)
    assert negative.tolist() == torch._neg_view(make(host + 1)).tolist()
    assert not ours.is_neg() and (negative + 0).tolist() == (-make(host + 1)).tolist()
