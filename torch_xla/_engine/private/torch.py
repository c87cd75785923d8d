"""Every private name of PyTorch that the engine borrows, and why. Nothing else in the package touches one."""

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import _meta_registrations
from torch._higher_order_ops.associative_scan import associative_scan_op
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch.nn.attention import flex_attention

# The documented way to a Python backend goes through these: an empty tensor on PrivateUse1, the hooks and the guard.
create_empty_tensor = torch._C._acc.create_empty_tensor
PrivateUse1Hooks = torch._C._acc.PrivateUse1Hooks
DeviceGuard = torch._C._acc.DeviceGuard
register_hooks = torch._C._acc.register_python_privateuseone_hook
register_device_guard = torch._C._acc.register_python_privateuseone_device_guard
register_device_module = torch._register_device_module
rename_backend = torch.utils.backend_registration.rename_privateuse1_backend
backend_name = torch._C._get_privateuse1_backend_name
privateuse1_device_type = torch._C._autograd.DeviceType.PrivateUse1

# Views are made by PyTorch's own Meta kernels, which only look at sizes and strides.
META_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)

# What the dispatcher knows about an operator, without building its Python objects.
all_operator_names = torch._C._dispatch_get_all_op_names
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
schema_of = torch._C._get_schema

# Kernels run with Python dispatch modes still active (FakeTensorMode of torch.compile, vmap): meta inference must not
# see them, or a mode would trace our private meta tensors.


@contextmanager
def without_modes() -> Iterator[None]:
    """No modes of PyTorch, nor a level of forward derivatives, at which even the text of an error asks for tangents."""
    forward_ad = torch.autograd.forward_ad
    level, forward_ad._current_level = forward_ad._current_level, -1
    try:
        with torch.utils._python_dispatch._disable_current_modes():
            yield
    finally:
        forward_ad._current_level = level


# The order of memory that a tensor's strides suggest; in public only the test for one order can be asked for.
suggest_memory_format = torch._prims_common.suggest_memory_format


class _Inference(threading.local):
    of_the_cpu = False


_inference = _Inference()
_usual_hint = _meta_registrations.device_hint


def _device_hint(tensor: Any) -> str:
    hint: str = "cpu" if _inference.of_the_cpu and tensor.is_meta else _usual_hint(tensor)
    return hint


_meta_registrations.device_hint = _device_hint


@contextmanager
def meta_kernels_for_the_cpu(of_the_cpu: bool) -> Iterator[None]:
    """A `with` block in which meta kernels describe the CPU's results; they describe CUDA's where the two differ."""
    before, _inference.of_the_cpu = _inference.of_the_cpu, of_the_cpu
    try:
        yield
    finally:
        _inference.of_the_cpu = before


# Compares the geometry of many tensors at once with what it was: a tenth of the time that asking each in Python takes.
# Dynamo's guards are made of it; importing it imports no Dynamo.
TensorGuards = torch._C._dynamo.guards.TensorGuards

# A number that is another one after every change to a dictionary. From Python 3.13 on an object's attributes lie in the
# object, and an assignment to one of them changes the dictionary that shows them without a new number.
dict_version = torch._C._dynamo.guards.dict_version
DICT_VERSIONS_TELL = sys.version_info < (3, 13)

# How many tensors and others hold a storage, given its address: of aliases made in C++ Python knows nothing.
storage_use_count = torch._C._storage_Use_Count
tensor_use_count = torch.Tensor._use_count  # type: ignore[attr-defined]

transforms_are_active = torch._C._are_functorch_transforms_active

# Whether a tensor stands for several that a vectorized backward pass was given (`is_grads_batched=True`).
is_batch_of_gradients = torch._C._functorch.is_legacy_batchedtensor


def modes_of_calls() -> tuple[object, ...]:
    """What sees the calls of this thread before an operator does: modes, and hooks of saved tensors."""
    functions = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    operators = [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]
    saved = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return (*functions, *operators, saved) if saved is not None else (*functions, *operators)


# PyTorch counts the writes of `_foreach_` operators in their kernels, not before them.
increment_version = torch._C._increment_version


def exchange(kept: torch.Tensor, other: torch.Tensor) -> None:
    """Gives the Python object `kept` the tensor behind `other`, and the other way round.

    `torch.utils.swap_tensors` would exchange the attributes too, and refuses tensors that anything else knows.
    """
    hooks, after = kept._backward_hooks, kept._post_accumulate_grad_hooks
    torch._C._swap_tensor_impl(kept, other)
    # Python keeps both dictionaries with the object; set again, they belong to the new tensor.
    if hooks is not None:
        kept._backward_hooks = hooks
    if after is not None:
        kept._post_accumulate_grad_hooks = after


def mark_conjugate(tensor: torch.Tensor) -> None:
    """From now on `tensor` shows the conjugate of its memory; in public only a new tensor can."""
    torch._C._set_tensor_metadata(tensor, {"conj": True})  # type: ignore[attr-defined]


from_dlpack = torch._C._from_dlpack
without_torch_function = torch._C.DisableTorchFunctionSubclass
profiler_is_running = torch._C._autograd._profiler_enabled  # of `torch.profiler`: whether it would keep an event


def after_default_dtype_changes(note: Any) -> None:
    """Calls `note` whenever the default dtype is set: all public ways to set it end in these two functions."""

    def noting(setter: Any) -> Any:
        def set_and_note(argument: Any) -> None:
            setter(argument)
            note()

        return set_and_note

    for name in ("_set_default_dtype", "_set_default_tensor_type"):
        setattr(torch._C, name, noting(getattr(torch._C, name)))


def answer_for_accelerator(**answers: Any) -> None:
    """Replaces what `torch.accelerator` asks PyTorch's guard, which knows one ordinal of a Python backend."""
    for name, answer in answers.items():
        setattr(torch._C, f"_accelerator_{name}", answer)


def answer_for_device(answer: Any) -> None:
    """Replaces the question for the accelerator, or for the CPU if there is none."""
    torch._C._get_accelerator = answer  # type: ignore[attr-defined]


def wrap_available_device_type(wrapper: Any) -> None:
    """Replaces the function that tells `DataParallel` what to spread a module over, for that class alone."""
    names = torch.nn.parallel.data_parallel.__globals__
    names["_get_available_device_type"] = wrapper(names["_get_available_device_type"])


def wrap_fake_device_test(wrapper: Any) -> None:
    """Replaces the question of `FakeTensorMode`, whether this device is one to be initialised."""
    names = vars(torch._subclasses.fake_tensor)
    if "_is_privateuse1_backend_available" in names:  # before 2.12 it asks for CUDA alone
        names["_is_privateuse1_backend_available"] = wrapper(names["_is_privateuse1_backend_available"])


def raw_library(namespace: str) -> torch.library.Library:
    """A library to register kernels in."""
    return torch.library.Library(namespace, "IMPL")


def register_kernel(library: torch.library.Library, name: str, kernel: Any) -> None:
    """Registers `kernel` for PrivateUse1. `Library.impl` costs three times as much through its checks."""
    assert library.m is not None
    library.m.impl(name, "PrivateUse1", kernel)


def unregister(library: torch.library.Library) -> None:
    """Takes back what `library` registered."""
    library._destroy()


def register_fallthrough(key: str) -> torch.library.Library:
    """Lets every operator pass through the dispatch key `key`."""
    library = torch.library.Library("_", "IMPL", key)
    library.fallback(torch.library.fallthrough_kernel)
    return library


def register_fallback(key: str, kernel: Any) -> torch.library.Library:
    """Calls `kernel` with the overload and its arguments for every operator without a kernel for `key`."""
    library = torch.library.Library("_", "IMPL", key)
    library.fallback(kernel)
    return library


def register_last_fallback(key: str, kernel: Any) -> None:
    """`register_fallback`, until the process ends: PyTorch takes a `Library` back when Python begins to end."""
    library = torch._C._dispatch_library("IMPL", "_", key, __file__, 0)
    library.fallback(key, kernel, False)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))


def register_autocast_kernel(library: torch.library.Library, name: str, kernel: Any) -> None:
    """Registers what happens to the operator `name` under `torch.autocast("xla")`."""
    assert library.m is not None
    library.m.impl(name, "AutocastPrivateUse1", kernel)


def fills_uninitialized_memory() -> bool:
    """`torch.utils.deterministic.fill_uninitialized_memory`, without what reading a module's property costs."""
    return torch._C._get_deterministic_fill_uninitialized_memory()


def without_autocast() -> Any:
    """A `with` block in which autocast is passed by."""
    key = torch._C._parse_dispatch_key("AutocastPrivateUse1")
    assert key is not None
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key))


def below_autograd() -> Any:
    """A `with` block in which autograd records nothing, as in the gradient formulas of PyTorch."""
    return torch._C._AutoDispatchBelowAutograd()


def fused_attention_enabled() -> bool:
    """False inside `sdpa_kernel(SDPBackend.MATH)`, which asks for the composition: it can be differentiated twice."""
    return torch._C._get_flash_sdp_enabled() or torch._C._get_overrideable_sdp_enabled()


def calls_are_watched() -> bool:
    """Whether operators are being transformed, traced or given tangents: then only PyTorch's own ones may be called."""
    return (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.autograd.forward_ad._current_level >= 0
    )


def give_default_device(constructor: Any) -> None:
    """Has a constructor that is replaced in `torch` made on the default device still: the mode knows it by identity."""
    torch.utils._device._device_constructors().add(constructor)


def wrap_backward(wrapper: Any) -> None:
    """Replaces the function that starts PyTorch's backward engine, under both names it is called by."""
    wrapped = wrapper(torch.autograd.graph._engine_run_backward)
    torch.autograd.graph._engine_run_backward = wrapped
    torch.autograd._engine_run_backward = wrapped  # type: ignore[attr-defined]


def wrap_devices_of_flex_attention(wrapper: Any) -> None:
    """Replaces the function that holds the tensors given to `flex_attention` against a list of devices."""
    flex_attention._validate_device = wrapper(flex_attention._validate_device)


def wrap_total_norm(wrapper: Any) -> None:
    """Replaces the function that `clip_grad_norm_` asks for the norm of gradients, under both names it is called by."""
    clipping = torch.nn.utils.clip_grad
    clipping._get_total_norm = torch.nn.utils.get_total_norm = wrapper(clipping._get_total_norm)


def never_traced(function: Any) -> Any:
    """`function`, which `torch.compile` runs as it is.

    PyTorch calls our hooks while it traces a program, and would trace them too, hooks and all. `torch._dynamo.disable`
    says the same, at the price of importing Dynamo with us.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    frames.set_code_exec_strategy(function.__code__, skip)
    return function


def constant_in_graphs(function: Any) -> Any:
    """`function`, whose result `torch.compile` takes for a constant of the graph, instead of ending the graph at it.

    `torch._dynamo.assume_constant_result` says the same, at the price of importing Dynamo with us.
    """
    function._dynamo_marked_constant = True
    return function


def is_traced() -> bool:
    """Whether a trace of PyTorch's looks at what is called now."""
    keys = torch._C._TorchDispatchModeKey
    return any(torch._C._get_dispatch_mode(key) is not None for key in (keys.FAKE, keys.FUNCTIONAL, keys.PROXY))


def ends_graphs(reason: str) -> Callable[[Any], Any]:
    """A decorator: `torch.compile` ends a graph at the function, and says why where there may be but one graph."""

    def mark(function: Any) -> Any:
        function._torchdynamo_disable = True
        function._torchdynamo_disable_msg = reason
        return function

    return mark


def must_be_one_graph() -> bool:
    """Called in a program that `torch.compile` traces: whether that was told `fullgraph=True`."""
    translator: Any = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx()
    return bool(translator.output.root_tx.one_graph)


# Loops and branches, whose arguments are functions or graphs.
while_loop = while_loop_op
cond = cond_op
scan = scan_op
map_loop = map_impl
associative_scan = associative_scan_op


def kernel_of_higher_order(operator: Any, kernel: Any) -> None:
    """Calls `kernel` when `operator` is called with tensors on PrivateUse1, outside of everything that traces."""
    operator.py_impl(torch._C.DispatchKey.PrivateUse1)(kernel)


def composition_of(operator: Any) -> Any:
    """What PyTorch runs for an operator that takes functions: Python, which reads on the host how to go on."""
    return operator.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]


def wrap_generator_class(make: Callable[[Any], Any]) -> None:
    """Lets `make(device)` say what `torch.Generator(device)` is; where it returns `None`, PyTorch does.

    PyTorch has no hook for backends in Python, and `torch.Generator` must stay the class that it is: annotations,
    `isinstance` and TorchScript know it. So it is called by way of a class of its own, as any class written in Python
    may be; C's classes only do not let it be set.
    """
    kind = type(torch.Generator)

    class Calling(kind):  # type: ignore[misc, valid-type]
        __slots__ = ()
        # A class written in C has its module in its name, which this attribute of its class would hide.
        __module__ = type.__dict__["__module__"]

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is torch.Generator and (args or "device" in kwargs):
                made = make(args[0] if args else kwargs["device"])
                if made is not None:
                    return made
            return super().__call__(*args, **kwargs)

    Calling.__name__ = Calling.__qualname__ = kind.__name__
    word = ctypes.sizeof(ctypes.c_void_p)
    place = ctypes.c_void_p.from_address(id(torch.Generator) + object.__basicsize__ - word)
    if place.value == id(kind):  # the head of an object ends with its class
        _keep.append(Calling)
        place.value = id(Calling)


_keep: list[Any] = []


def dynamic_dims(value: Any) -> set[int]:
    """The dimensions of a tensor that `torch._dynamo.mark_dynamic` has marked, or `maybe_mark_dynamic`."""
    marked: set[int] = getattr(value, "_dynamo_dynamic_indices", set()) | getattr(
        value, "_dynamo_weak_dynamic_indices", set()
    )
    return marked


def saved_tensors_hooks_in_force() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """What packs and unpacks the tensors that autograd saves now. In public hooks can be added and not asked for."""
    found: tuple[Callable[..., Any], Callable[..., Any]] | None
    found = torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[attr-defined]
    return found


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Calls `function` when the backward pass that runs now has ended; `RuntimeError` if none runs."""
    torch.autograd.Variable._execution_engine.queue_callback(function)
