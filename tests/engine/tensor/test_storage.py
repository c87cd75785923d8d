"""Storages: which tensors share one, what `resize_`, `set_` and `.data` do to it, and how it looks as bytes."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import torch_xla
from tests.support.twins import Program, cases, check_refused, check_same, numbers
from torch_xla._engine.metrics import counters
from torch_xla._engine.tensor.storage import value_of, values_of_whole, wrap_all


def n(*size: int, d: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return numbers(*size, device=d, dtype=dtype)


def test_a_storage_knows_its_bytes() -> None:
    def use(d: str) -> Any:
        x = n(2, 3, d=d)
        storage = x[1].untyped_storage()
        return storage.nbytes(), len(storage), storage.size(), storage.tolist(), storage[5], x.element_size()

    check_same(use)


@cases(
    {
        "fill_": lambda s: s.fill_(0),
        "item assignment": lambda s: s.__setitem__(3, 63),
        "copy_ from the host": lambda s: s.copy_(torch.arange(6.0).neg().untyped_storage()),
        "copy_ from the device": lambda s: s.copy_(torch.ones(6).to(s.device).untyped_storage()),
        "clone": lambda s: s.clone().fill_(0),
    }
)
def test_writes_to_bytes_reach_every_tensor(program: Any) -> None:
    def use(d: str) -> Any:
        x = n(2, 3, d=d)
        view = x.t()
        program(x.untyped_storage())
        return x, view

    check_same(use)


def test_bytes_travel_between_host_and_device() -> None:
    host = torch.arange(3.0).untyped_storage()
    there = host.to(device="xla")
    assert there.device == torch.device("xla:0") and there.nbytes() == 12
    host.fill_(0)
    assert there.cpu().tolist() == torch.arange(3.0).untyped_storage().tolist()
    shown = torch.empty(0, device="xla").set_(there)
    assert shown.tolist() == [0, 1, 2]


def test_bytes_from_the_host_take_the_dtype_of_their_first_tensor_and_are_never_reinterpreted() -> None:
    storage = torch.arange(6.0).untyped_storage().to(device="xla")
    x = torch.empty(0, device="xla").set_(storage, 0, (2, 3), (3, 1))
    (x * 2).sum()
    torch_xla.sync()
    assert counters.value_of("xla::read_view") is None


def test_a_storage_that_pytorch_makes_by_size_is_ours() -> None:
    storage = torch.UntypedStorage(12, device="xla")
    assert (storage.nbytes(), storage.device.type, storage.is_shared()) == (12, "xla", False)
    x = torch.empty(0, device="xla").set_(storage, 0, (3,), (1,))
    x.fill_(1)
    assert storage.tolist() == torch.ones(3).untyped_storage().tolist()


def test_addresses_tell_which_tensors_share_memory() -> None:
    x, y = torch.ones(2, 3, device="xla"), torch.ones(1000, device="xla")
    assert x[1].data_ptr() - x.data_ptr() == 12
    assert x.t().untyped_storage().data_ptr() == x.data_ptr() == x.detach().data_ptr() != 0
    assert not x.data_ptr() <= y.data_ptr() < x.data_ptr() + 24
    assert not y.data_ptr() <= x.data_ptr() < y.data_ptr() + 4000
    assert torch.empty(0, device="xla").data_ptr() == 0


def test_a_storage_can_be_freed_and_made_again() -> None:
    x = torch.ones(4, device="xla")
    storage = x.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(16)
    x.copy_(torch.arange(4.0))
    assert x.tolist() == [0, 1, 2, 3]
    storage.resize_(24)
    assert x.tolist() == [0, 1, 2, 3] and storage.nbytes() == 24


@cases(
    {
        "smaller": lambda d: n(2, 3, d=d).resize_(2, 2),
        "same elements": lambda d: n(2, 3, d=d).resize_(3, 2),
        "a view": lambda d: n(6, d=d)[2:].resize_(2),
        "to nothing": lambda d: n(2, 3, d=d).resize_(0),
        "to nothing and back": lambda d: n(2, 3, d=d).resize_(0).resize_(2, 3),
        "as another": lambda d: n(2, 3, d=d).resize_as_(n(3, 2, d=d)),
        "channels last": lambda d: n(24, d=d).resize_((1, 2, 3, 4), memory_format=torch.channels_last),
        "a part beyond its end": lambda d: (x := n(12, d=d))[3:7].resize_(2, 3).fill_(1) is None or x,
        "to no dimension": lambda d: n(3, d=d).resize_(()),
    }
)
def test_resize_keeps_the_elements(program: Program) -> None:
    check_same(program, versions=True)


def test_growing_keeps_the_elements_and_the_aliases() -> None:
    def use(d: str) -> Any:
        x = n(2, 3, d=d)
        alias = x.view(-1)
        x.resize_(4, 3)
        x[2:] = 7
        x.view(-1)[0] = 5
        return x, alias

    check_same(use, versions=True)


@cases(
    {
        "a tensor": lambda x, y: x.set_(y),
        "a storage": lambda x, y: x.set_(y.untyped_storage()),
        "a part of a storage": lambda x, y: x.set_(y.untyped_storage(), 1, (2, 2), (2, 1)),
        "without strides": lambda x, y: x.set_(y.untyped_storage(), 1, (2,)),
        "a part of a tensor": lambda x, y: x.set_(y, 1, (3,), (1,)),
        "a view": lambda x, y: x.set_(y.view(2, 3).t()),
    }
)
def test_set_makes_a_tensor_a_view_of_another_memory(program: Any) -> None:
    def use(d: str) -> Any:
        x, y = n(2, 3, d=d), n(6, d=d) + 10
        old = x.view(-1)
        program(x, y)
        x.mul_(2)
        return x, y, old

    check_same(use, versions=True)


def test_set_without_a_source_empties() -> None:
    check_same(lambda d: n(2, 3, d=d).set_(), versions=True)


def test_set_refuses_another_dtype() -> None:
    check_refused(lambda d: n(2, d=d).set_(n(2, d=d, dtype=torch.int64)))


def test_is_set_to_compares_memory_and_geometry() -> None:
    def use(d: str) -> Any:
        x = n(2, 3, d=d)
        others = (x.detach(), x.view(3, 2), x[1:], x.clone(), torch.empty(0, device=d).set_(x))
        return [x.is_set_to(y) for y in others]

    check_same(use)


def test_assigning_data_changes_the_memory_behind_a_parameter() -> None:
    def use(d: str) -> Any:
        p = Parameter(n(2, 3, d=d))
        before, view = p.data, p.detach().view(-1)
        p.data = n(2, 2, d=d) + 1
        p.data.add_(1)
        with torch.no_grad():
            p.mul_(3)
        return p, before, view, p._version

    check_same(use)


def test_assigning_data_may_change_dtype_and_strides() -> None:
    def use(d: str) -> Any:
        p = n(2, 3, d=d)
        p.data = n(2, 3, d=d).double()
        q = n(2, 3, d=d)
        q.data = n(3, 2, d=d).t()
        return p, q

    check_same(use)


def test_copy_copy_shares_the_storage() -> None:
    def use(d: str) -> Any:
        x = n(2, 3, d=d)
        y, p = copy.copy(x), copy.copy(Parameter(x))
        y.add_(1)
        return x, y, p, copy.copy(x.t())

    check_same(use)


def test_deepcopy_copies_a_storage_once() -> None:
    def use(d: str) -> Any:
        x = n(2, 3, d=d)
        first, again, flat, part = copy.deepcopy([x, x, x.view(-1), x[1:]])
        first.add_(1)
        return x, first, first is again, flat, part, copy.deepcopy(Parameter(x)), copy.deepcopy(x.t())

    check_same(use)


def test_deepcopy_takes_gradients_and_attributes_along() -> None:
    def use(d: str) -> Any:
        x = n(3, d=d).requires_grad_()
        (x * x).sum().backward()
        x.note = ["kept"]  # type: ignore[attr-defined]
        y = copy.deepcopy(x)
        y.note.append("copied")  # type: ignore[attr-defined]
        return y, y.grad, x.note, y.note  # type: ignore[attr-defined]

    check_same(use)


def test_deepcopy_refuses_what_has_a_history() -> None:
    check_refused(lambda d: copy.deepcopy(n(2, d=d).requires_grad_() * 2))


def test_a_clone_has_memory_of_its_own() -> None:
    def use(d: str) -> Any:
        x = n(2, 3, d=d)
        y, z = x.clone(), x.t().clone()
        x.add_(1)
        y[0] = 9
        return x, y, z

    check_same(use)


def test_a_storage_dies_with_its_last_tensor() -> None:
    x = torch.ones(3, device="xla")
    value = weakref.ref(x.untyped_storage())
    view = x[1:]
    del x
    gc.collect()
    assert value() is not None
    assert view.tolist() == [1, 1]
    del view
    gc.collect()
    assert value() is None


def test_uninitialised_memory_can_be_read() -> None:
    x = torch.empty(2, 3, device="xla")
    assert x.cpu().shape == (2, 3)
    y = torch.empty(4, device="xla")
    y[1:3] = 5
    assert y.tolist()[1:3] == [5, 5]
    assert torch.empty_strided((2, 2), (5, 1), device="xla").fill_(3).sum().item() == 12


@pytest.mark.parametrize("stride", [(3, 1), (1, 2), (7, 2), (0, 1), (1, 1)])
def test_empty_strided_gives_the_strides_asked_for(stride: tuple[int, int]) -> None:
    x = torch.empty_strided((2, 3), stride, device="xla")
    y = torch.empty_strided((2, 3), stride)
    assert (x.stride(), x.is_contiguous(), x.untyped_storage().nbytes()) == (
        y.stride(),
        y.is_contiguous(),
        y.untyped_storage().nbytes(),
    )


def test_memory_of_the_device_is_not_shared_between_processes() -> None:
    with pytest.raises(RuntimeError, match="share a copy on the CPU"):
        torch.ones(2, device="xla").share_memory_()


def test_tensors_are_looked_at_together_as_they_are_now() -> None:
    """Whatever was found for them, or for others of their forms, before."""
    changes: dict[str, Any] = {
        "set_": lambda x: x.set_(x.untyped_storage(), 0, (3, 2), (2, 1)),
        "t_": lambda x: x.t_(),
        "data": lambda x: setattr(x, "data", x[:, :1]),
        "resize_": lambda x: x.resize_(1, 2),
        "view": lambda x: x.view(3, 2),
    }
    for name, change in changes.items():
        tensors = [n(2, 3, d="xla") for _ in range(3)]
        values = [value_of(x) for x in tensors]
        for _ in range(3):
            assert values_of_whole(tensors) == (values, tuple(value.spec for value in values))
        changed = change(tensors[1])
        tensors[1] = changed if name == "view" else tensors[1]
        assert values_of_whole(tensors) is None, name
        found = values_of_whole([tensors[0], tensors[2]])
        assert found is not None and found[0] == [values[0], values[2]]


def test_tensors_that_differ_in_what_does_not_matter_are_whole() -> None:
    plain = [n(2, 3, d="xla") for _ in range(2)]
    mixed = [plain[0], n(2, 3, d="xla").requires_grad_()]
    with_parameter = [plain[0], Parameter(n(2, 3, d="xla"))]
    for _ in range(3):
        for tensors in (plain, mixed, with_parameter):
            found = values_of_whole(tensors)
            assert found is not None and found[0] == [value_of(x) for x in tensors]
    turned = [n(2, 3, d="xla").to(torch.complex64)] * 2
    assert values_of_whole(turned) is None  # conjugates look like what they are of
    with pytest.raises(AttributeError):
        values_of_whole([plain[0], torch.ones(2, 3)])


def test_values_are_wrapped_together_in_their_own_orders_of_memory() -> None:
    tensors = [n(2, 3, d="xla"), n(0, d="xla"), n(1, 2, 2, 2, d="xla").to(memory_format=torch.channels_last)]
    tensors += [(n(2, 3, d="xla").t() + 1), n(2, d="xla", dtype=torch.int64)]
    made = wrap_all([value_of(x) for x in tensors])
    assert [(x.shape, x.stride(), x.dtype) for x in made] == [(x.shape, x.stride(), x.dtype) for x in tensors]
    assert all(value_of(x) is value_of(y) for x, y in zip(made, tensors, strict=True))
    assert wrap_all([]) == []


@pytest.mark.parametrize("repeats", [1, 3])
def test_many_computed_operands_enter_a_tape_once_each(repeats: int) -> None:
    tensors = [n(2, d="xla") + i for i in range(9)]
    torch_xla.sync()
    values = [value_of(x) for x in tensors]
    pending = tensors[0] * 2
    torch._foreach_add_(tensors, 1.0)
    total = torch.stack([*tensors[1:], pending, *tensors[1:]] * repeats)
    tape = values[0].device.tape
    assert all(tape.values.count(value) == 1 and tape.values[value.slot] is value for value in values)
    wanted = [numbers(2, device="cpu") + i for i in range(9)]
    first = wanted[0] * 2
    wanted = [x + 1 for x in wanted]
    assert total.cpu().equal(torch.stack([*wanted[1:], first, *wanted[1:]] * repeats))
