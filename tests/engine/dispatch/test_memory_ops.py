"""Memory is made, copied, moved, resized and shared as on the CPU, down to the words of refusals."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.outcomes import outcome
from torch_xla._engine.step.pending_graph import is_pending
from torch_xla._engine.tensor.device import device_at
from torch_xla._engine.tensor.storage import value_of


def form(x: torch.Tensor) -> Any:
    return tuple(x.shape), x.stride(), x.dtype


MAKING: dict[str, Callable[[str], torch.Tensor]] = {
    "size": lambda d: torch.empty(2, 3, device=d),
    "dtype": lambda d: torch.empty(2, dtype=torch.int8, device=d),
    "channels": lambda d: torch.empty((2, 3, 4, 5), memory_format=torch.channels_last, device=d),
    "strided": lambda d: torch.empty_strided((2, 3), (1, 2), device=d),
    "gaps": lambda d: torch.empty_strided((2, 3), (7, 2), device=d),
    "overlap": lambda d: torch.empty_strided((4, 3), (1, 1), device=d),
    "none": lambda d: torch.empty_strided((0, 3), (5, 1), device=d),
    "new": lambda d: torch.empty(1, device=d, dtype=torch.float64).new_empty_strided((2, 2), (1, 2)),
}


@pytest.mark.parametrize("name", MAKING)
def test_new_memory_has_the_form_asked_for_and_is_described_only(name: str) -> None:
    before = list(device_at(0).tape.code)
    made = MAKING[name]("xla")
    assert form(made) == form(MAKING[name]("cpu"))
    assert value_of(made).state == "empty" and device_at(0).tape.code == before
    assert made.untyped_storage().nbytes() == MAKING[name]("cpu").untyped_storage().nbytes()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int16, torch.uint8, torch.bool]
)
def test_deterministic_algorithms_fill_memory_that_nobody_wrote(dtype: torch.dtype) -> None:
    def made(device: str) -> list[torch.Tensor]:
        ones = torch.ones(2, dtype=dtype, device=device)
        strided = torch.empty_strided((2, 2), (3, 1), dtype=dtype, device=device)
        grown = torch.empty(0, dtype=dtype, device=device).resize_(2)
        return [torch.empty(3, dtype=dtype, device=device), torch.empty_like(ones), strided, ones.resize_(4), grown]

    torch.use_deterministic_algorithms(True)
    try:
        found, expected = made("xla"), made("cpu")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        unfilled = torch.empty(3, device="xla")
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(False)
    assert value_of(unfilled).state == "empty" == value_of(torch.empty(3, device="xla")).state
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, equal_nan=True)


def set_(d: str, offset: int, *geometry: Any) -> torch.Tensor:
    x = torch.ones(4, device=d)
    return x.set_(x.untyped_storage(), offset, *geometry)  # type: ignore[call-overload, no-any-return]


REFUSED: dict[str, Callable[[str], object]] = {
    "negative size": lambda d: torch.empty((2, -2, -3), device=d),
    "negative size, strided": lambda d: torch.empty_strided((-2, 3), (7, 1), device=d),
    "other strides": lambda d: torch.empty_strided((2,), (1, 1), device=d),
    "other strides, set": lambda d: set_(d, 0, (6,), (1, 1)),
    "negative offset": lambda d: set_(d, -1, (1,), (1,)),
    "copy, first": lambda d: torch.empty(2, 3, device=d).copy_(torch.ones(4, 3)),
    "copy, last": lambda d: torch.empty(2, 3, device=d).copy_(torch.ones(2, 4)),
    "copy, more dimensions": lambda d: torch.empty(2, 3, device=d).copy_(torch.ones(5, 2, 3)),
    "copy, more and others": lambda d: torch.empty(2, 3, device=d).copy_(torch.ones(4, 2, 2)),
    "copy, would grow": lambda d: torch.empty(2, 1, device=d).copy_(torch.ones(2, 3)),
    "copy, to a scalar": lambda d: torch.empty((), device=d).copy_(torch.ones(2)),
    "resize": lambda d: torch.ones(2, device=d).resize_(2, -3),
    "resize, format": lambda d: torch.ones(2, device=d).resize_((3,), memory_format=torch.preserve_format),
    "clone": lambda d: torch.ones(2, 3, device=d).clone(memory_format=torch.channels_last),
    "item": lambda d: torch.ones(2, device=d).item(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_cpu_refuses_is_refused_in_its_words(name: str) -> None:
    told = []
    for device in ("cpu", "xla"):
        with pytest.raises(Exception) as refusal:  # noqa: PT011
            REFUSED[name](device)
        told.append((refusal.type, str(refusal.value).partition("\n")[0]))
    assert told[0] == told[1]


def test_a_storage_that_is_too_small_for_a_view_grows() -> None:
    for device in ("cpu", "xla"):
        x = torch.arange(4.0, device=device)
        view = x[1:]
        x.set_(x.untyped_storage(), 2, (3, 2), (2, 1))  # type: ignore[call-overload]
        assert x.untyped_storage().nbytes() == 32 and x[0].tolist() == [2, 3]
        view.add_(1)
        assert x[0].tolist() == [3, 4]


def test_a_copy_of_all_is_the_same_value_until_one_is_written() -> None:
    x = torch.arange(6.0).view(2, 3).to("xla")
    copies = [x.clone(), x.to("xla", copy=True), torch.empty(2, 3, device="xla").copy_(x)]
    assert all(value_of(each) is value_of(x) for each in copies)
    copies[0].add_(1)
    assert x.tolist() == copies[1].tolist() == [[0, 1, 2], [3, 4, 5]] and copies[0][0, 0].item() == 1
    assert value_of(x[:1].clone()) is not value_of(x)
    assert value_of(x.t().clone(memory_format=torch.contiguous_format)) is not value_of(x)


def test_what_somebody_outside_may_write_to_is_copied() -> None:
    x = torch.arange(3.0).to("xla")
    torch.utils.dlpack.to_dlpack(x)
    value_of(x).shared = True
    for copy in (x.clone(), torch.empty(3, device="xla").copy_(x)):
        assert value_of(copy) is not value_of(x) and copy.tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("number", [1.1, -2, True, 300, math.inf, 1 + 2j, 0j], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int8, torch.bool, torch.complex64], ids=str)
def test_a_number_is_copied_as_on_the_cpu(number: complex, dtype: torch.dtype) -> None:
    if number == math.inf and dtype is torch.int8:
        pytest.skip("what C makes of infinity as a whole number is anything")
    ours, theirs = torch.zeros(2, 3, dtype=dtype, device="xla"), torch.zeros(2, 3, dtype=dtype)
    for x in (ours, theirs):
        assert x[:, 1:].copy_(number).shape == (2, 2)  # type: ignore[arg-type]
        x.t()[0].copy_(number)  # type: ignore[arg-type]
    assert torch.equal(ours.cpu(), theirs) and ours._version == theirs._version


@pytest.mark.parametrize("name", ["empty", "zeros", "randn", "arithmetic"])
def test_complex32_is_called_experimental_as_on_the_cpu(name: str) -> None:
    def make(device: str) -> None:
        sized = {"dtype": torch.complex32, "device": device}
        if name == "arithmetic":
            return torch.empty(7, **sized) + 3  # type: ignore[call-overload, no-any-return]
        return getattr(torch, name)(5, 11, **sized)  # type: ignore[no-any-return]

    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        for device in ("cpu", "xla"):
            with pytest.warns(UserWarning, match="ComplexHalf support is experimental"):
                make(device)
    finally:
        torch.set_warn_always(before)


def test_a_copy_onto_itself_does_nothing() -> None:
    x = torch.arange(4.0).to("xla")
    before = list(device_at(0).tape.code)
    x.copy_(x)
    x[1:].copy_(x[1:])
    assert device_at(0).tape.code == before
    x[1:].copy_(x[:-1].clone())
    assert x.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.ones(2), torch.ones(2)), (torch.ones(2), torch.zeros(2)), (torch.ones(2), torch.ones(3)),
        (torch.ones(0), torch.ones(0)), (torch.full((2,), float("nan")), torch.full((2,), float("nan"))),
        (torch.ones(2), torch.ones(2, dtype=torch.int64)), (torch.ones(2, 1), torch.ones(2)),
        (torch.tensor([1j]), torch.tensor([1j]).conj()),
    ],
    ids=range(8),
)  # fmt: skip
def test_tensors_are_equal_where_they_are_on_the_cpu(a: torch.Tensor, b: torch.Tensor) -> None:
    assert outcome(lambda: torch.equal(a.to("xla"), b.to("xla")))[0] == outcome(lambda: torch.equal(a, b))[0]


RESIZED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "smaller": lambda x: x.resize_(2),
    "larger": lambda x: x.resize_(3, 3),
    "a view": lambda x: x[2:].resize_(5),
    "format": lambda x: x.resize_((1, 2, 1, 3), memory_format=torch.channels_last),
    "nothing": lambda x: x.resize_(0),
}


@pytest.mark.parametrize("name", RESIZED)
def test_resizing_keeps_what_fits(name: str) -> None:
    ours, theirs = (RESIZED[name](torch.arange(6.0).to(device)) for device in ("xla", "cpu"))
    assert form(ours) == form(theirs) and ours.storage_offset() == theirs.storage_offset()
    known = 6 - theirs.storage_offset()
    flat = (each.as_strided((min(known, each.numel()),), (1,)) for each in (ours, theirs))
    assert next(flat).tolist() == next(flat).tolist()
    assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()


def test_whether_two_show_the_same_is_asked_of_memory_and_not_of_values() -> None:
    x = torch.ones(3, device="xla")
    assert x.is_set_to(x.detach()) and not x.is_set_to(x[1:]) and not x.is_set_to(x.clone())
    y = torch.ones(1, device="xla").set_(x)  # type: ignore[call-overload]
    assert y.is_set_to(x)
    y.set_()  # type: ignore[call-overload]
    assert y.numel() == 0 and x.numel() == 3


def test_contents_pass_between_host_and_device_by_copy_from() -> None:
    x, host = torch.arange(3.0, device="xla") + 1, torch.empty(0)
    torch._copy_from_and_resize(x, host)  # type: ignore[attr-defined]
    assert host.tolist() == [1, 2, 3] and not is_pending(x)
    target = torch.empty(3, device="xla")
    torch._copy_from(host, target)  # type: ignore[attr-defined]
    assert target.tolist() == [1, 2, 3]


def test_a_lazy_clone_is_a_copy() -> None:
    for device in ("cpu", "xla"):
        x = torch.arange(6.0, device=device).reshape(2, 3)
        copies = torch._lazy_clone(x), torch._lazy_clone(x.t()), torch._lazy_clone(x[:, 1])
        x.zero_()
        copies[0].add_(1)
        assert [each.tolist() for each in copies] == [[[1, 2, 3], [4, 5, 6]], [[0, 3], [1, 4], [2, 5]], [1, 4]]
