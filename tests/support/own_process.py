"""Calls that are each made in a process of its own: what they return, what they raise, and which signal ends them.

    python -m tests.support.own_process SECTION... prints one JSON object: {call: [before, after, forked]}

A call is made once in a process that has not used the device, once in one that has, and once in the fork of one that
has, where the device cannot be used. The first two are forks of a process that has imported the package and started no
client, which costs a tenth of a second for each instead of seconds.
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

import torch_xla

SECONDS = 120

# Calls that PyTorch's C++ answers for every backend, or passes to our hooks, guard, allocator or generator.
HOOKS = """
torch._C._get_accelerator()
torch._C._accelerator_setStream(torch.Stream(device="xla"))
torch.accelerator.set_stream(torch.Stream(device="xla"))
torch.accelerator.device_index(0).__enter__()
torch.accelerator.device_index(None).__enter__()
torch.accelerator.device_index(99).__enter__()
torch.accelerator.Graph()
torch.accelerator.Graph().replay()
torch.accelerator.Graph().reset()
torch.accelerator.Graph().__enter__()
torch.xla.graph(torch.xla.XLAGraph()).__enter__()
torch.xla.graph(None)
torch.xla.XLAGraph().replay()
torch.xla.XLAGraph().capture_end()
torch.xla.make_graphed_callables(torch.nn.Linear(2, 2).to("xla"), (torch.ones(1, 2, device="xla"),))
torch.xla.make_graphed_callables(None, ())
torch.empty(4, pin_memory=True)
torch.empty(4, device="xla", pin_memory=True)
torch.ones(4).pin_memory()
torch.ones(4).pin_memory("xla")
torch.ones(4).is_pinned("xla")
torch.ops.aten._pin_memory(torch.ones(4), torch.device("xla"))
torch.ops.aten.is_pinned(torch.ones(4), torch.device("xla"))
torch.ops.aten._pin_memory(torch.ones(4, device="xla"), torch.device("xla"))
torch.UntypedStorage(16, device="xla")
torch.UntypedStorage._new_shared(16, device="xla")
torch._C.StorageBase.resize_(torch.ones(4, device="xla").untyped_storage(), 64)
torch._C.StorageBase.data_ptr(torch.ones(4, device="xla").untyped_storage())
torch._C._construct_storage_from_data_pointer(0, torch.device("xla"), 0)
torch.ones(4, device="xla").untyped_storage()._share_fd_cpu_()
torch.ones(4, device="xla").untyped_storage()._weak_ref()
torch.ones(4, device="xla").resize_(100)
torch.ops.aten.set_(torch.ones(4, device="xla"))
torch.utils.dlpack.to_dlpack(torch.ones(4, device="xla"))
torch.ones(4, device="xla").share_memory_()
torch.ops.aten.record_stream(torch.ones(4, device="xla"), torch.Stream(device="xla"))
torch.Generator(device="xla")
torch.Generator.__new__(torch.Generator, device="xla")
torch._C.Generator.get_state(torch.Generator("xla"))
torch._C.Generator.graphsafe_get_state(torch.Generator("xla"))
torch.Generator("xla").get_offset()
torch.rand(3, generator=torch.Generator("xla"))
torch.random.fork_rng(device_type="xla").__enter__()
torch.manual_seed(4)
torch.Stream(device="xla")
torch.Stream("xla:99")
torch.Stream(stream_id=5, device_index=0, device_type=20).query()
torch.Stream(device="xla").query()
torch.Stream(device="xla").synchronize()
torch.Stream(device="xla").wait_event(torch.Event(device="xla"))
torch.Stream(device="xla").wait_stream(torch.Stream(device="xla"))
torch.Stream(device="xla").record_event()
torch.Stream(device="xla").native_handle
torch.Stream(device="xla").__enter__()
torch.Event(device="xla", enable_timing=True)
torch.Event(device="xla").record()
torch.Event(device="xla").wait()
torch.Event(device="xla").query()
torch.Event(device="xla").synchronize()
torch.Event(device="xla").elapsed_time(torch.Event(device="xla"))
torch.Event(device="xla").ipc_handle()
torch.Event.from_ipc_handle(torch.device("xla"), b"0" * 64)
torch.xla.Event().record(torch.Stream(device="xla"))
torch.Generator("xla:99")
torch.Generator("xla").set_state(torch.Generator("xla").get_state())
torch.Generator("xla").graphsafe_set_state(torch.Generator("xla"))
torch.rand(3, device="xla", generator=torch.Generator("xla").clone_state())
torch._C._storage_Use_Count(torch.ones(4, device="xla").untyped_storage()._cdata)
torch.ones(4, device="xla").untyped_storage().is_pinned()
torch.ones(4, device="xla").untyped_storage().pin_memory()
torch.ones(4, device="xla").untyped_storage().copy_(torch.ones(4).untyped_storage())
torch.ones(4).untyped_storage().copy_(torch.ones(4, device="xla").untyped_storage())
torch.ones(4, device="xla").untyped_storage().fill_(0)
torch.ones(4, device="xla").untyped_storage()[0]
torch.ones(4, device="xla").untyped_storage().tolist()
torch.ones(4, device="xla").untyped_storage().clone()
torch.ones(4, device="xla").untyped_storage()._share_filename_cpu_()
torch.ones(4, device="xla").untyped_storage()._new_with_weak_ptr(0)
torch.ones(4, device="xla").data_ptr()
torch.ones(4, device="xla").numpy()
torch.ones(4, device="xla").cuda()
torch.ones(4, device="xla").tolist()
torch.ones(4, device="xla").storage()
torch.ones(4, device="xla").__dlpack__()
torch.from_dlpack(torch.ones(4, device="xla"))
torch.from_dlpack(torch.utils.dlpack.to_dlpack(torch.ones(4))).to("xla")
torch.multiprocessing.reductions.reduce_tensor(torch.ones(4, device="xla"))
torch.autocast("xla").__enter__()
torch.set_default_device("xla")
torch.set_autocast_dtype("xla", torch.float16)
torch._register_device_module("xla", torch)
torch.utils.generate_methods_for_privateuse1_backend()
torch._C._acc.create_empty_tensor((2,), torch.float32)
torch._C._acc.PrivateUse1Hooks().is_available()
torch._C._acc.PrivateUse1Hooks().has_primary_context(0)
torch._C._acc.DeviceGuard().type_()
torch.autograd.profiler.profile(use_device="xla").__enter__()
torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.PrivateUse1]).__enter__()
torch.ones(3, device="xla", requires_grad=True).sum().backward()
torch.utils.rename_privateuse1_backend("other")
"""

# What has methods. The processes that make the list of these, and call none, use no device.
METHODS = """
torch.Generator("xla")
torch.Stream(device="xla")
torch.Event(device="xla")
"""

# By the name of the call: its text, and a function that makes it.
Calls = dict[str, Callable[[], Any]]


def accelerator() -> Calls:
    """Every function of `torch.accelerator`, and what these call in PyTorch's library."""
    calls: Calls = {}
    for module in (torch.accelerator, torch.accelerator.memory):
        for name in module.__all__:
            for arguments in ((), (0,), (99,)):
                _add(calls, module, name, arguments)
    for name in dir(torch._C):
        if name.startswith("_accelerator_"):
            for arguments in ((), (0,), (-1,), (99,)):
                _add(calls, torch._C, name, arguments)
    return calls


def device_module() -> Calls:
    """Every function of `torch.xla`."""
    calls: Calls = {}
    for name in vars(torch.get_device_module("xla")):
        if not name.startswith("__"):
            for arguments in ((), (0,), (99,)):
                _add(calls, torch.get_device_module("xla"), name, arguments)
    return calls


def hooks() -> Calls:
    """Return the calls of the other parts of PyTorch's interface for devices."""
    return {line: lambda line=line: eval(line) for line in HOOKS.strip().splitlines()}  # type: ignore[misc]


def smallest() -> Calls:
    """Return the calls that have crashed, and similar ones."""
    module = torch.accelerator.memory
    return {f"{name}()": getattr(module, name) for name in module.__all__ if "empty" in name}


def parts() -> Calls:
    """Return the calls of every function and class in the modules of `torch.xla`."""
    calls: Calls = {}
    for part in ("memory", "graphs", "random", "streams", "amp"):
        for name in vars(sys.modules[f"torch.xla.{part}"]):
            if not name.startswith("__"):
                for arguments in ((), (0,), (99,), (None,), (torch.ones(2),)):
                    _add(calls, sys.modules[f"torch.xla.{part}"], name, arguments)
    return calls


def methods() -> Calls:
    """Return the calls of every method of what PyTorch makes for a device: generator, stream, event, storage."""
    calls: Calls = {}
    for made in METHODS.strip().splitlines():
        for name in dir(eval(made, {"torch": torch}).__class__):
            if not name.startswith("__"):
                for arguments in ("", "0", "None", "torch.zeros(4)", made):
                    text = f"getattr({made}, {name!r})"
                    calls[f"{text}({arguments})"] = lambda text=text, arguments=arguments: _called(text, arguments)
    return calls


def _called(text: str, arguments: str) -> object:
    found = eval(text)
    return eval(f"found({arguments})", {"found": found, "torch": torch}) if callable(found) else found


def _add(calls: Calls, module: Any, name: str, arguments: tuple[Any, ...]) -> None:
    function = getattr(module, name)
    if callable(function):
        calls[f"{module.__name__}.{name}{arguments}"] = lambda: function(*arguments)


def outcomes(calls: Calls) -> dict[str, list[str]]:
    """By call what became of it before and after the first use of the device, and in a fork after it."""
    found = {name: [_outcome(call, used) for used in (False, True)] for name, call in calls.items()}
    _use()
    for name, call in calls.items():
        found[name].append(_outcome(call, used=False))
    return found


def _use() -> None:
    torch.ones(4, device="xla")
    torch_xla.sync(wait=True)


def _outcome(call: Callable[[], Any], used: bool) -> str:
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        os.close(told)
        signal.alarm(SECONDS)
        with open(os.devnull, "w") as nowhere, tempfile.TemporaryDirectory() as own:
            os.chdir(own)  # some write a file where they are
            os.dup2(nowhere.fileno(), 2)
            os.write(tells, "".join(_said(call, used))[:1000].encode())
        os._exit(0)
    os.close(tells)
    with open(told) as said:
        text = said.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return text if code == 0 else f"signal {-code}"


def _said(call: Callable[[], Any], used: bool) -> Iterator[str]:
    try:
        if used:
            _use()
        yield f"value {call()!r}"
    except BaseException as error:
        yield f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    print(json.dumps({name: outcomes(globals()[name]()) for name in sys.argv[1:]}))
