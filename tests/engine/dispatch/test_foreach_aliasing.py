"""Lists of tensors that `_foreach_` operators write to, where elements have to do with each other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.dispatch import foreach_aliasing

N = 3


def run(device: str, name: str, places: list[int], others: list[list[int]]) -> list[list[float]]:
    """Return the contents of tensors after a call that writes to those at `places` and reads those at `others`."""
    tensors = [torch.tensor([float(k), 1.0]).to(device) for k in range(2, 2 + N)]
    getattr(torch, name)(*[[tensors[k] for k in each] for each in (places, *others)])
    return [tensor.tolist() for tensor in tensors]


lengths = st.shared(st.integers(1, N), key="length")
chosen = lengths.flatmap(lambda length: st.lists(st.integers(0, N - 1), min_size=length, max_size=length))


@pytest.mark.parametrize(("name", "reads"), [("_foreach_add_", 1), ("_foreach_mul_", 1), ("_foreach_addcmul_", 2)])
@settings(max_examples=10)
@given(data=st.data())
def test_each_element_sees_what_those_before_it_wrote(name: str, reads: int, data: st.DataObject) -> None:
    places, others = data.draw(chosen), [data.draw(chosen) for _ in range(reads)]
    assert run("xla", name, places, others) == run("cpu", name, places, others)


def test_two_that_are_swapped() -> None:
    a, b = torch.tensor([1.0], device="xla"), torch.tensor([10.0], device="xla")
    torch._foreach_add_([a, b], [b, a])
    assert (a.item(), b.item()) == (11.0, 21.0)
    assert (a._version, b._version) == (1, 1)


def test_a_tensor_that_every_element_reads() -> None:
    results = []
    for device in ("cpu", "xla"):
        a, b = torch.tensor(2.0).to(device), torch.tensor(3.0).to(device)
        torch._foreach_mul_([a, b], a)
        results.append((a.item(), b.item()))
    assert results[0] == results[1]


def test_numbers_go_with_their_elements() -> None:
    results = []
    for device in ("cpu", "xla"):
        a = torch.tensor(2.0).to(device)
        torch._foreach_mul_([a, a], [5.0, 7.0])
        torch._foreach_addcdiv_([a, a], [a, a], [a, a], [1.0, 2.0])
        results.append(a.item())
    assert results[0] == results[1]


def test_parts_of_one_storage_that_do_not_meet_stay_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreach_aliasing, "one_by_one", None)
    flat, gradients = torch.ones(6, device="xla"), torch.ones(6, device="xla")
    torch._foreach_add_([flat[:2], flat[2:]], [gradients[:2], gradients[2:]])
    torch._foreach_addcmul_([flat[:2], flat[2:]], [flat[:2], flat[2:]], [gradients[:2], flat[2:]])
    assert flat.tolist() == [4.0, 4.0, 6.0, 6.0, 6.0, 6.0]
    torch._foreach_add_([flat[::2], flat[1::2]], 1)
    assert flat.tolist() == [5.0, 5.0, 7.0, 7.0, 7.0, 7.0]


def test_parts_that_meet() -> None:
    results = []
    for device in ("cpu", "xla"):
        x = torch.tensor([1.0, 2.0, 3.0]).to(device)
        torch._foreach_add_([x[:2], x[1:]], [torch.ones(2).to(device)] * 2)
        results.append(x.tolist())
    assert results[0] == results[1] == [2.0, 4.0, 4.0]
