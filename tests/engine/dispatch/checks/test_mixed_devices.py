"""Operands that are not on the device: numbers of the host are let in, everything else is refused by its size."""

import pytest
import torch

import torch_xla
from torch_xla._engine.dispatch.checks.mixed_devices import admit, on_device
from torch_xla._engine.dispatch.op_schema import operator_of
from torch_xla._engine.metrics import counters
from torch_xla._engine.tensor.device import device_at
from torch_xla._engine.tensor.storage import value_of

ADD, ADD_ = operator_of("aten::add.Tensor"), operator_of("aten::add_.Tensor")


def test_a_scalar_of_the_host_becomes_one_of_the_device() -> None:
    x = torch.ones(2, device="xla")
    (same, scalar), options = admit(ADD, (x, torch.tensor(2.5, dtype=torch.float64)), {"alpha": 1})
    assert same is x and options == {"alpha": 1}
    assert (scalar.device, scalar.dtype, scalar.item()) == (x.device, torch.float64, 2.5)


def test_a_tensor_of_the_host_is_refused_with_what_to_do() -> None:
    x = torch.ones(2, device="xla")
    with pytest.raises(
        RuntimeError,
        match=r"^Expected all tensors to be on the same device, but found at least two devices, xla:0 and cpu! \(when "
        r"calling aten::add.Tensor; move the tensor of shape \[2\] with `.to\('xla:0'\)`\)$",
    ):
        admit(ADD, (x, torch.ones(2)), {})


def test_lists_of_two_devices_are_refused_as_pytorch_words_it() -> None:
    words = "torch.block_diag: input tensors must all be on the same device. Input 0 is on device cpu and input 1 is on"
    with pytest.raises(RuntimeError, match=rf"^{words} device xla:0! \(when calling aten::block_diag; move the tensor"):
        torch.block_diag(torch.ones(2, 2), torch.ones(2, 2, device="xla"))


def test_what_is_written_may_not_be_a_scalar_of_the_host() -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        admit(ADD_, (torch.tensor(1.0), torch.ones((), device="xla")), {})
    assert admit(ADD_, (torch.ones((), device="xla"), torch.tensor(1.0)), {})[0][1].device.type == "xla"


def test_memory_that_nobody_has_described_is_described() -> None:
    x = torch.ones(2, device="xla")
    del x.untyped_storage().value  # type: ignore[attr-defined]
    admit(ADD, (x, 1), {})
    assert value_of(x).state == "empty"


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(TypeError, match="^aten::add.Tensor: an argument of a kind that the xla device does not know$"):
        admit(ADD, (torch.ones(2, device="xla"), 1), {})


def test_another_number_of_the_host_compiles_nothing_new() -> None:
    x = torch.arange(3.0).to("xla")
    for number in (2.5, 3.5, 4.5, 5.5):
        y = x * on_device(torch.tensor(number), device_at(0))
        torch_xla.sync()
        assert y[2].item() == 2 * number
    assert (counters.value_of("UncachedCompile") or 0) <= 2
    assert on_device(torch.tensor(1 + 2j), device_at(0)).item() == 1 + 2j
