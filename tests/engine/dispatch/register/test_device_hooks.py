"""`xla` as a device of PyTorch: the name, `torch.xla`, streams and events, autocast, exceptions in a backward pass."""

import copy
import os
import pickle
import subprocess
import sys
from contextlib import nullcontext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torch_xla

xla = torch.xla  # type: ignore[attr-defined]


def test_the_device_has_a_name_an_index_and_is_the_accelerator() -> None:
    x = torch.ones(2, device="xla")
    assert x.device == torch.device("xla", 0) == torch.device("xla:0")
    assert str(x.device) == "xla:0" and x.get_device() == 0
    assert torch.accelerator.current_accelerator() == torch.device("xla")
    assert torch.accelerator.is_available()
    assert torch.get_device_module("xla") is xla


@pytest.mark.parametrize("device", [torch.device("xla"), torch.device("xla", 0)])
def test_a_device_can_be_copied_and_pickled(device: torch.device) -> None:
    assert copy.deepcopy(device) == device
    assert pickle.loads(pickle.dumps(device)) == device


def test_the_module_answers_what_pytorch_asks_of_one() -> None:
    torch.ones(2, device="xla").tolist()
    assert xla.is_available() and xla.is_initialized()
    assert xla.device_count() == torch_xla.device_count() >= 1
    assert xla.current_device() == 0
    assert isinstance(xla.get_device_name(), str) and xla.get_device_name()
    assert xla.get_device_properties(0).name == xla.get_device_name(0)
    xla.empty_cache()
    xla.synchronize()
    torch.accelerator.synchronize()


def test_is_xla_and_xla_are_there_for_tensors_and_modules() -> None:
    assert torch.ones(2).xla().is_xla  # type: ignore[attr-defined]
    assert not torch.ones(2).is_xla  # type: ignore[attr-defined]
    assert torch.nn.Linear(2, 2).xla().weight.device.type == "xla"  # type: ignore[operator]
    assert torch.ones(2).xla(0).device.index == 0  # type: ignore[attr-defined]


def test_properties_have_what_trainers_ask_for() -> None:
    properties = xla.get_device_properties("xla:0")
    assert properties.total_memory > 1 << 28 and properties.name and properties.platform
    assert xla.is_bf16_supported() and xla.has_half and not xla.is_current_stream_capturing()
    assert isinstance(xla.is_tf32_supported(), bool)
    assert xla.ipc_collect() is None


@pytest.mark.parametrize(
    "name",
    ["current_stream", "default_stream", "device", "get_device_capability", "get_device_name", "get_device_properties",
     "get_rng_state", "memory_allocated", "memory_stats", "mem_get_info", "reset_accumulated_memory_stats",
     "reset_peak_memory_stats", "set_device", "synchronize", "Event", "Stream"],
)  # fmt: skip
def test_functions_of_the_module_take_devices_of_their_own_type_alone(name: str) -> None:
    function = getattr(torch.xla, name)
    (torch.ones(2, device="xla") + 1).cpu()
    for device in (None, -1, 0, "xla", torch.device("xla", 0)):
        function(device)
    for device in ("cpu", "cuda:0", torch.device("meta")):
        with pytest.raises(ValueError, match="expected an xla device"):
            function(device)
    with pytest.raises(RuntimeError, match="xla:99 does not exist"):
        with_block = function(99)
        with_block.__enter__()  # a block looks when it begins


def test_functions_of_the_accelerator_refuse_a_device_that_does_not_exist() -> None:
    (torch.ones(2, device="xla") + 1).cpu()
    for function in (torch.accelerator.current_stream, torch.accelerator.get_device_capability):
        function(0)
        with pytest.raises(RuntimeError, match="xla:99 does not exist"):
            function(99)


def test_a_block_chooses_the_device_and_gives_it_back() -> None:
    x = torch.ones(2, device="xla")
    for block in (xla.device(0), xla.device("xla:0"), xla.device(None), xla.device(-1), xla.device_of(x)):
        with block:
            assert xla.current_device() == 0
    with xla.device_of(torch.ones(2)):
        assert xla.current_device() == 0
    with pytest.raises(TypeError, match=r"device_of\(0\): expected a tensor or a storage, got int"):
        xla.device_of(0)
    with pytest.raises(RuntimeError, match="xla:99 does not exist"), xla.device(99):
        pass


def test_autocast_knows_its_dtypes() -> None:
    assert torch.bfloat16 in xla.get_amp_supported_dtype()
    with torch.autocast("xla", dtype=torch.bfloat16):
        x = torch.ones(2, 2, device="xla")
        assert (x @ x).dtype is torch.bfloat16
        assert torch.nn.functional.linear(x, x).dtype is torch.bfloat16
        assert x.sum().dtype is torch.float32
        with torch.autocast("xla", enabled=False):
            assert (x @ x).dtype is torch.float32
    assert (x @ x).dtype is torch.float32


def test_the_default_device_may_be_xla() -> None:
    with torch.device("xla"):
        assert torch.ones(2).device.type == "xla"
        assert torch.arange(3).device.type == "xla"
        assert torch.tensor([1.0]).device.type == "xla"
    torch.set_default_device("xla")
    try:
        assert torch.zeros(2).device.type == "xla"
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"


def test_subclasses_and_dispatch_modes_see_the_device() -> None:
    class Marked(torch.Tensor):
        pass

    class Log(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    x = torch.arange(3.0, device="xla").as_subclass(Marked)
    assert type(x + 1) is Marked
    with Log():
        y = torch.ones(3, device="xla") + 1
    assert seen[-1] == "aten.add.Tensor"
    assert y.tolist() == [2, 2, 2]


FORK = """
import os, warnings
warnings.simplefilter("ignore")
import torch, torch_xla
x = torch.ones(2, device="xla") + 1
x.tolist()
y = x + 1
if child := os.fork():
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert y.tolist() == [3, 3]
    print("parent works")
else:
    torch.manual_seed(0)
    assert (torch.ones(2) + 1).tolist() == [2, 2]
    assert x.tolist() == [2, 2]
    for use in (
        lambda: y.tolist(), lambda: torch.ones(2).to("xla"), lambda: torch.xla.device_count(), lambda: x + 1,
        lambda: torch.rand(2, device="xla"), lambda: x.add_(1), lambda: torch.stack([x, x]), lambda: torch_xla.sync(),
    ):
        try:
            use()
        except RuntimeError as error:
            assert "forked" in str(error)
        else:
            os._exit(1)
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_fork_of_a_process_that_used_the_device_is_told_so_instead_of_waiting_for_ever() -> None:
    root = Path(torch_xla.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == "parent works", done.stderr


LOADER = """
import warnings
warnings.simplefilter("ignore")
import torch, torch_xla
from torch.utils.data import DataLoader, TensorDataset
x = torch.arange(8.0, device="xla") + 1
x.tolist()
for collate in (None, lambda rows: rows):
    try:
        list(DataLoader(TensorDataset(x), num_workers=1, collate_fn=collate, timeout=300))
    except RuntimeError as error:
        assert "forked" in str(error), error
    else:
        raise AssertionError("not refused")
print("told twice")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_loader_of_device_tensors_tells_the_loop_instead_of_hanging() -> None:
    root = Path(torch_xla.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", LOADER], capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == "told twice", done.stderr


def test_tensors_are_sent_to_other_processes_as_copies() -> None:
    x = torch.arange(6.0, device="xla").reshape(2, 3)
    sent = torch.nn.Parameter(x * 2), x.t()[1:], x
    received = pickle.loads(ForkingPickler.dumps(sent))
    for ours, theirs in zip(received, sent, strict=True):
        assert ours.device == theirs.device and ours.stride() == theirs.stride() and type(ours) is type(theirs)
        assert ours.tolist() == theirs.tolist()
    received[2].add_(1)
    assert received[1].tolist() == x.add(1).t()[1:].tolist(), "what shared memory does so on the other side"
    assert x[0, 0] == 0


class _Refuses(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "mul" in str(function):
            raise ValueError("not here")
        return function(*args, **(kwargs or {}))


def _raising(*_: Any) -> None:
    raise ValueError("not here")


@pytest.mark.parametrize("where", ["tensor", "before the node", "after the node", "accumulated", "mode"])
def test_an_exception_leaves_a_backward_pass(where: str) -> None:
    x = torch.ones(3, device="xla", requires_grad=True)
    hidden = x * 2
    if where == "tensor":
        hidden.register_hook(_raising)
    elif where == "before the node":
        hidden.grad_fn.register_prehook(_raising)
    elif where == "after the node":
        hidden.grad_fn.register_hook(_raising)
    elif where == "accumulated":
        x.register_post_accumulate_grad_hook(_raising)
    loss = (hidden * x).sum()
    with pytest.raises(ValueError, match="not here"), _Refuses() if where == "mode" else nullcontext():
        loss.backward()
    # Nothing is lost, and the next pass works.
    y = torch.ones(3, device="xla", requires_grad=True)
    (y * y).sum().backward()
    assert y.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_size_that_depends_on_data_ends_no_process_while_a_graph_is_traced() -> None:
    def fill(x: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.index_fill(x, 0, index, value)

    x, value = (torch.ones(size, device="xla", requires_grad=True) for size in ((3,), ()))
    index = torch.tensor([1, 1], device="xla")
    filled = torch.compile(fill, backend="openxla")(x, index, value)
    filled.sum().backward()
    assert x.grad.tolist() == [1.0, 0.0, 1.0] and value.grad.item() == 1.0


def test_no_python_runs_where_pytorch_asks_the_guard() -> None:
    # An interrupt is raised where Python runs; and in a method of a guard C++ may not raise anything.
    w = torch.ones(2, device="xla", requires_grad=True)
    seen: list[str] = []

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "type_":
            seen.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        (w * w).sum().backward()
        torch.empty(2, device="xla")
    finally:
        sys.setprofile(None)
    assert not seen
