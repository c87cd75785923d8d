"""What PyTorch's C++ asks about devices is answered without a line of Python, on every processor by the same means."""

import platform
import sys

import pytest
import torch

from torch_xla._engine.private import guard


@pytest.mark.skipif(sys.platform not in guard._PAIRS, reason="elsewhere C++ returns pairs in another way")
def test_no_processor_is_a_special_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "any")
    assert guard._stream_of_device() is not None
    assert guard.let_exceptions_pass()


def test_a_library_without_the_method_leaves_the_guard_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_PAIRS", {sys.platform: ("libc.so.6", "no such method")})
    before = list(guard._methods_of(guard._OURS))
    assert not guard.let_exceptions_pass()
    monkeypatch.setattr(guard, "_PAIRS", {})
    assert not guard.let_exceptions_pass()
    assert list(guard._methods_of(guard._OURS)) == before


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
