"""Calls of PyTorch's C++ about devices run no line of Python, and work the same way on every processor."""

import platform
import sys

import pytest
import torch

from torch_xla._engine.compat.abi import device_guard


@pytest.mark.skipif(sys.platform not in device_guard._PAIRS, reason="elsewhere C++ returns pairs in another way")
def test_no_processor_is_a_special_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "any")
    assert device_guard._stream_of_device() is not None
    assert device_guard.let_exceptions_pass()


def test_a_library_without_the_method_leaves_the_guard_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_guard, "_PAIRS", {sys.platform: ("libc.so.6", "no such method")})
    before = list(device_guard._methods_of(device_guard._OURS))
    assert not device_guard.let_exceptions_pass()
    monkeypatch.setattr(device_guard, "_PAIRS", {})
    assert not device_guard.let_exceptions_pass()
    assert list(device_guard._methods_of(device_guard._OURS)) == before


def test_a_stream_is_that_of_its_device() -> None:
    torch.ones(1, device="xla")
    stream = torch.Stream(device="xla:0")
    assert stream.device == torch.device("xla:0")
    assert stream == torch.accelerator.current_stream() == torch.accelerator.current_stream("xla:0")
    assert stream.query()
    stream.synchronize()


def test_no_line_of_python_runs_where_c_plus_plus_asks_for_a_stream() -> None:
    ran: list[str] = []
    x = torch.ones(2, device="xla", requires_grad=True)
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        for _ in range(3):
            torch.Stream(device="xla:0")
            torch.autograd.graph.get_gradient_edge(x)
    finally:
        sys.setprofile(None)
    assert not [name for name in ran if "uard" in name or "type_" in name]


def test_the_layout_is_confirmed_and_the_guard_left_as_it_is() -> None:
    before = device_guard._guards()[device_guard._OURS]
    device_guard.confirm_layout()
    assert device_guard._guards()[device_guard._OURS] == before


@pytest.mark.parametrize(
    "name", ["_EXCHANGE_DEVICE", "_GET_DEVICE", "_GET_STREAM", "_GET_NEW_STREAM", "_QUERY_EVENT", "_QUERY_STREAM"]
)
def test_a_method_that_has_moved_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # One method more in front of it moves it by one place.
    number = getattr(device_guard, name)
    moved = {
        question: (ask, {method + 1 if method == number else method for method in expected})
        for question, (ask, expected) in device_guard._QUESTIONS.items()
    }
    monkeypatch.setattr(device_guard, "_QUESTIONS", moved)
    before = device_guard._guards()[device_guard._OURS]
    with pytest.raises(RuntimeError, match=r"the methods of device guards of torch .* differ .* pip install 'torch"):
        device_guard.confirm_layout()
    assert device_guard._guards()[device_guard._OURS] == before


def test_every_replaced_method_is_confirmed_or_between_two_that_are() -> None:
    confirmed = sorted(set().union(*(expected for _, expected in device_guard._QUESTIONS.values())))
    names = ["EXCHANGE_DEVICE", "GET_DEVICE", "GET_STREAM", "GET_NEW_STREAM", "EXCHANGE_STREAM", "DEVICE_COUNT"]
    replaced = [getattr(device_guard, f"_{name}") for name in names]
    assert all(confirmed[0] <= method <= confirmed[-1] for method in replaced)
    assert device_guard._TYPE == 0 and confirmed[0] == 1  # nothing is in front of the first


def test_a_table_of_guards_that_is_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [1, *[None] * device_guard._OURS]
    monkeypatch.setattr(device_guard, "_guards", lambda: table)
    device_guard.register_guard(lambda ours: table.__setitem__(device_guard._OURS, 7), None)  # as it should be
    for damage in (lambda ours: None, lambda ours: table.__setitem__(device_guard._OURS - 1, 7)):
        table[:] = [1, *[None] * device_guard._OURS]
        with pytest.raises(RuntimeError, match="the table of device guards of torch .* differ"):
            device_guard.register_guard(damage, None)
    monkeypatch.setattr(device_guard, "_guards", lambda: None)
    with pytest.raises(RuntimeError, match="libc10 exports no _ZN3c10"):
        device_guard.register_guard(lambda ours: None, None)


def test_other_numbers_of_device_types_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_guard, "_OURS", 19)
    with pytest.raises(RuntimeError, match="the numbers of device types of torch"):
        device_guard.register_guard(lambda ours: None, None)
