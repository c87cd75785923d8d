"""The kernel behind almost every operator: equal calls find one plan, and whatever a call is given is taken apart."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
from tests.support.twins import check_same
from torch_xla._engine.dispatch import recording_kernel
from torch_xla._engine.dispatch.recording_kernel import look_at_calls, take_apart
from torch_xla._engine.ir.call_plan import Plan
from torch_xla._engine.ir.tape import Value
from torch_xla._engine.tensor import storage
from torch_xla._engine.tensor.device import device_at
from torch_xla._engine.tensor.storage import value_of
from torch_xla._engine.tensor.views import view_of


def plans() -> list[object]:
    code = device_at(0).tape.code
    return [entry for entry in code if type(entry).__name__ == "Plan"]


def test_equal_calls_share_a_plan() -> None:
    x, y = torch.ones(2, 3, device="xla"), torch.zeros(2, 3, device="xla")
    kept = [x + 1, y + 1, x + 5]
    assert len({id(plan) for plan in plans()[-3:]}) == 1
    assert len(kept) == 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x: x + 1, lambda x: x + 1.0),
        (lambda x: x + True, lambda x: x + 1),
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: x.sum(0, keepdim=True), lambda x: x.sum(0, keepdim=False)),
        (lambda x: x + x, lambda x: x + x.clone(memory_format=torch.contiguous_format).t()),
        (lambda x: x.to(torch.float64), lambda x: x.to(torch.float16)),
    ],
)
def test_calls_that_differ_have_plans_of_their_own(first: object, second: object) -> None:
    x = torch.ones(3, 3, device="xla")
    kept = [first(x)]  # type: ignore[operator]
    one = plans()[-1]
    kept.append(second(x))  # type: ignore[operator]
    assert plans()[-1] is not one
    assert len(kept) == 2


def test_the_default_dtype_is_part_of_what_a_call_means() -> None:
    def made() -> list[torch.dtype]:
        x = torch.ones(2, dtype=torch.int64, device="xla")
        return [
            (x / 2).dtype,
            (x * 1.5).dtype,
            torch.ones(2, device="xla").dtype,
            torch.full((2,), 1.5, device="xla").dtype,
            torch.arange(0, 1, 0.5, device="xla").dtype,
            torch.tensor(1.5, device="xla").dtype,
            torch.empty(2, device="xla").dtype,
            x.float().to(torch.float64).mean().dtype,
        ]

    single = made()
    assert single == [torch.float32] * 7 + [torch.float64]
    torch.set_default_dtype(torch.float64)
    try:
        assert made() == [torch.float64] * 8
        assert (torch.ones(2, dtype=torch.int64, device="xla") / 3)[0].item() == 1 / 3
    finally:
        torch.set_default_dtype(torch.float32)
    assert made() == single


def test_arguments_are_taken_apart_into_kinds_operands_and_numbers() -> None:
    x = torch.ones(2, 3, device="xla")
    call: Any = [], [], []
    for argument, takes_scalar in ((x, True), (x.t(), True), (2.5, False), (3, True), (3, False), (True, True)):
        take_apart(argument, takes_scalar, call)
    take_apart([x, (1, None)], False, call)
    signature, operands, numbers = call
    value, turned = value_of(x), view_of(x.t())
    assert operands == [value, (value, turned), value] and numbers == [2.5, 3]
    kinds = [value.spec, turned.kind, float, int, 3, (bool, True), 2, value.spec, 2, 1, None]
    assert signature == kinds


def apart(argument: Any) -> Any:
    call: Any = [], [], []
    take_apart(argument, True, call)
    return call


def test_a_list_is_taken_apart_as_its_elements_are_one_by_one() -> None:
    """However alike they are, and however often it was seen; a key tells apart what differs."""
    whole = [
        torch.nn.Parameter(torch.ones(n, 2, device="xla")) if n % 2 else torch.ones(n, 2, device="xla")
        for n in (1, 2, 3)
    ]
    of_parts = [whole[0], whole[1].t(), whole[2][1:], whole[1][:1]]
    of_complex = [
        torch.ones(2, device="xla", dtype=torch.complex64),
        torch.ones(2, device="xla").to(torch.complex64).conj(),
    ]
    for elements in (whole, of_parts, of_complex, [], [1.5, -0.0], [1, 2.5], [None, whole[0]], (whole[1], whole[1])):
        for _ in range(3):
            each = [apart(element) for element in elements]
            signature, operands, numbers = apart(elements)
            kinds = [kind for one in each for kind in one[0]]
            together = [tuple(kinds), frozenset(kinds)]  # of tensors, of floats
            assert signature == [len(elements), *kinds] or signature in ([len(elements), key] for key in together)
            assert operands == [operand for one in each for operand in one[1]]
            assert numbers == [number for one in each for number in one[2]]
    keys = [
        tuple(apart(of)[0]) for of in ([True, False], [False, True], [True], [1, 0], [1.0, 0.0], [1], [], [True, 1])
    ]
    assert len(set(keys)) == len(keys)
    with pytest.raises(AttributeError):
        take_apart([whole[0], torch.ones(1)], True, ([], [], []))


def test_an_integer_that_the_device_cannot_hold_is_no_number_of_a_program() -> None:
    call: Any = [], [], []
    take_apart(1 << 63, True, call)
    assert call == ([1 << 63], [], [])
    with pytest.raises(AttributeError):
        take_apart(torch.ones(1), True, call)


def test_a_call_with_two_tensors_takes_the_short_way_to_the_same_plan() -> None:
    a, b = torch.ones(2, 3, device="xla"), torch.full((2, 3), 2.0, device="xla")
    kept = [a + b, torch.add(b, a), torch.add(a, b, alpha=2), a + b.t().t(), torch.nn.Parameter(a) + b]
    made = [plan for plan in plans() if str(plan.op) == "aten.add.Tensor"][-5:]  # type: ignore[attr-defined]
    assert made[0] is made[1] is made[3] is made[4]
    assert [each[0, 0].item() for each in kept] == [3, 3, 5, 3, 3]


def test_who_looks_at_calls_sees_each_before_it_is_recorded() -> None:
    seen: list[tuple[str, int]] = []

    def look(plan: Plan, call: Any) -> None:
        seen.append((str(plan.op), len(call[1])))

    x = torch.ones(2, device="xla")
    look_at_calls(look)
    try:
        y = (x + x).exp()
        y.add_(1.5)
        torch._foreach_mul_([x, y], 2.0)
    finally:
        look_at_calls(None)
    x.sin()
    assert seen == [
        ("aten.add.Tensor", 2), ("aten.exp.default", 1), ("aten.add.Tensor", 1), ("aten._foreach_mul.Scalar", 2),
    ]  # fmt: skip


def test_draws_come_from_the_generator_that_was_given() -> None:
    own = torch.Generator(device="xla").manual_seed(3)
    before = recording_kernel.given_draws
    first = torch.rand(3, device="xla", generator=own).tolist()
    assert recording_kernel.given_draws == before + 1
    own.manual_seed(3)
    torch.rand(3, device="xla")  # of the device's own sequence
    assert torch.rand(3, device="xla", generator=own).tolist() == first and recording_kernel.given_draws == before + 2


def test_a_call_that_raises_lets_the_lock_go() -> None:
    x = torch.ones(2, device="xla")
    with pytest.raises(RuntimeError, match="must match the size"):
        x + torch.ones(3, device="xla")
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append((x + x).tolist()))
    thread.start()
    thread.join(60)
    assert done == [[2, 2]]


RETURNS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tuple": lambda x: x.max(0),
    "list": lambda x: torch._foreach_add([x, x], 1),
    "nothing": lambda x: torch._foreach_add_([x.clone()], 1),
    "itself": lambda x: x.clone().add_(1),
    "out": lambda x: torch.max(x, 0, out=(x.new_empty(0), x.new_empty(0, dtype=torch.int64))),
    "optional": lambda x: torch.ops.aten.linear_backward(x, x, x.new_ones(3, 3), [True, False, True]),
}


@pytest.mark.parametrize("name", RETURNS)
def test_results_are_nested_as_the_operator_returns_them(name: str) -> None:
    def shape(found: Any) -> Any:
        if isinstance(found, (tuple, list)):
            return type(found), [shape(each) for each in found]
        return found if found is None else (tuple(found.shape), found.dtype)

    host = torch.arange(6.0).view(2, 3)
    if name == "optional":  # the CPU has no kernel of that name
        assert shape(RETURNS[name](host.to("xla")))[1][1] is None
    else:
        assert shape(RETURNS[name](host.to("xla"))) == shape(RETURNS[name](host))


def test_a_number_that_a_rule_insists_on_is_part_of_the_plan() -> None:
    torch_xla.sync()
    x = torch.arange(6.0).to("xla")
    kept = [torch.quantile(x, 0.5), torch.quantile(x, 0.25), x.pow(2), x.pow(3)]
    host = torch.arange(6.0)
    assert [each.tolist() for each in kept] == [
        each.tolist() for each in (torch.quantile(host, 0.5), torch.quantile(host, 0.25), host**2, host**3)
    ]


@pytest.mark.parametrize("reads_a_view", [False, True])
@pytest.mark.parametrize("writes_a_view", [False, True])
def test_tensors_written_together_are_replaced_where_each_shows_all_of_its_storage(
    reads_a_view: bool, writes_a_view: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[torch.Tensor] = []

    def note(tensor: torch.Tensor, base: Value, value: Value) -> Any:
        written.append(tensor)
        return original(tensor, base, value)

    original = storage._written
    monkeypatch.setattr(storage, "_written", note)

    def program(d: str) -> Any:
        memory = [torch.arange(4.0).view(2, 2).to(d), torch.ones(2, 2).to(d)]
        targets = [memory[0].t() if writes_a_view else memory[0], memory[1]]
        read = torch.arange(4.0, 8.0).view(2, 2).to(d)
        torch._foreach_add_(targets, [read.t() if reads_a_view else read, read])
        return memory

    check_same(program)
    assert len(written) == (2 if writes_a_view else 0)
