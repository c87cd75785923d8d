"""PyTorch's C++ makes views of our tensors, and nothing is written where its kernels are kept elsewhere."""

import ctypes
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torch_xla._engine.compat.abi import view_kernels
from torch_xla._engine.compat.names import torch as private

NAME = "torch_xla_layout_test::shown"


@pytest.fixture
def library() -> Iterator[Any]:
    """An operator with a kernel in C++ for Meta, and one in Python for our device."""
    space, _, name = NAME.partition("::")
    made = torch.library.Library(space, "FRAGMENT")
    made.define(f"{name}(Tensor self) -> Tensor")
    made.impl(name, lambda x: x[:1], "Meta")
    private.register_kernel(made, name, lambda x: x[:2])
    yield made
    made._destroy()


def test_no_python_runs_for_a_view() -> None:
    x = torch.arange(12.0).view(3, 4).to("xla").requires_grad_()
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        made = [x.view(12), x.t(), x[1], x[:, 1:3], x.unfold(1, 2, 2), x.permute(1, 0), x.expand(2, 3, 4)]
    finally:
        sys.setprofile(None)
    assert called == [] and len(made) == 7


def test_a_kernel_of_python_is_not_taken(library: Any) -> None:
    overload = torch.ops.torch_xla_layout_test.shown.default
    x = torch.arange(4.0).to("xla")
    assert view_kernels.take_meta_kernels([overload]) and overload(x).tolist() == [0, 1]


def test_nothing_is_written_where_an_operator_has_no_kernel_of_python() -> None:
    before = torch.arange(4.0).to("xla").exp().tolist()
    # Its kernel for Meta is one of C++, and so is the one for our device, which PyTorch composes.
    assert not view_kernels.take_meta_kernels([torch.ops.aten.detach.default, torch.ops.aten.square.default])
    assert torch.arange(4.0).to("xla").exp().tolist() == before


def test_another_layout_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_kernels, "_READ", 8)  # ends before the table
    assert not view_kernels.take_meta_kernels([torch.ops.aten.view.default])
    monkeypatch.undo()
    monkeypatch.setattr(view_kernels, "_COPIED", 99)  # more than an entry has
    assert not view_kernels.take_meta_kernels([torch.ops.aten.view.default])


@pytest.mark.parametrize("part", ["_copy", "_holders", "_words"])
def test_nothing_is_written_where_the_rehearsal_fails(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere, words = (ctypes.c_uint64 * 8)(), view_kernels._words
    written = view_kernels._words_of(torch.ops.aten.view.default._handle)
    before = list(written)
    places = {
        "_copy": lambda table, ours, theirs: None,  # the kernel of Python's serves still
        "_holders": lambda kernel: ctypes.c_uint32.from_buffer(nowhere),  # nothing is counted there
        "_words": lambda thing, count: words(thing, count) if count == 1 else nowhere,  # another kernel's
    }
    monkeypatch.setattr(view_kernels, part, places[part])
    assert not view_kernels.take_meta_kernels([torch.ops.aten.view.default])
    assert list(written) == before and torch.arange(4.0).to("xla").view(2, 2).tolist() == [[0, 1], [2, 3]]


def test_a_kernel_that_is_registered_later_serves(library: Any) -> None:
    overload = torch.ops.aten.unfold.default
    late = torch.library.Library("aten", "IMPL")
    x = torch.arange(4.0).to("xla")
    try:
        private.register_kernel(late, "unfold", lambda x, *_: x[:1])
        assert x.unfold(0, 2, 2).tolist() == [0]
    finally:
        late._destroy()
    assert x.unfold(0, 2, 2).tolist() == [[0, 1], [2, 3]]  # by ours of Python's
    assert view_kernels.take_meta_kernels([overload]) and x.unfold(0, 2, 2).tolist() == [[0, 1], [2, 3]]
