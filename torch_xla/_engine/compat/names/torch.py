"""Every private name of PyTorch that the engine borrows, and why. Nothing outside of this room touches one."""

import ctypes
import importlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import _meta_registrations
from torch._decomp import core_aten_decompositions as core_aten_decompositions
from torch._decomp import get_decompositions as get_decompositions
from torch._higher_order_ops.associative_scan import associative_scan as _associative_scan
from torch._higher_order_ops.associative_scan import associative_scan_op
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention
from torch._higher_order_ops.flex_attention import flex_attention_backward as flex_attention_backward
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan as _scan
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch.utils import _pytree
from torch.utils._device import DeviceContext as DeviceContext

from ...quiet_calls import quiet
from .. import patch_list

F = TypeVar("F", bound=Callable[..., object])

# The documented way to a Python backend goes through these: an empty tensor on PrivateUse1, the hooks and the guard.
create_empty_tensor = torch._C._acc.create_empty_tensor
PrivateUse1Hooks = torch._C._acc.PrivateUse1Hooks
DeviceGuard = torch._C._acc.DeviceGuard
register_hooks = torch._C._acc.register_python_privateuseone_hook
register_device_guard = torch._C._acc.register_python_privateuseone_device_guard
register_device_module = torch._register_device_module
rename_backend = torch.utils.backend_registration.rename_privateuse1_backend
backend_name = torch._C._get_privateuse1_backend_name
DeviceType = torch._C._autograd.DeviceType
ProfilerState = torch._C._profiler.ProfilerState

# The dispatcher's facts about an operator, without building its Python objects.
all_operator_names = torch._C._dispatch_get_all_op_names
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
schema_named = torch._C._get_schema

# The schema and attributes of an overload.
schema_of: Callable[[object], Any] = attrgetter("_schema")
overload_name_of: Callable[[object], str] = attrgetter("_overloadname")
# Calls the kernel of an overload for the given dispatch keys.
redispatch_of: Callable[[object], Callable[..., Any]] = attrgetter("_handle.redispatch_boxed")

# Structures that hold tensors. In public, they are not in every release that we take.
pytree = _pytree

# The address of the C++ object of a storage or a generator.
address_of: Callable[[object], int] = attrgetter("_cdata")
# How often a tensor was written in place.
version_of: Callable[[torch.Tensor], int] = attrgetter("_version")
hooks_of: Callable[[torch.Tensor], object] = attrgetter("_backward_hooks")
hooks_after_accumulation_of: Callable[[torch.Tensor], object] = attrgetter("_post_accumulate_grad_hooks")
is_view: Callable[[torch.Tensor], bool] = torch.Tensor._is_view

# Makes of a leaf a tensor on the same memory whose backward pass raises `RuntimeError`.
spent: Callable[[torch.Tensor], torch.Tensor] = torch._C._functions.DelayedError(
    "Trying to backward through the graph a second time: the function that returned this tensor has used its graph. "
    "Write retain_graph=True where it calls backward, or differentiate inside it",
    1,
)

# A module's own tables. An object may have two names in them, and entries are replaced without checks.
parameters_of: Callable[[torch.nn.Module], dict[str, Any]] = attrgetter("_parameters")
buffers_of: Callable[[torch.nn.Module], dict[str, torch.Tensor | None]] = attrgetter("_buffers")
modules_of: Callable[[torch.nn.Module], dict[str, Any]] = attrgetter("_modules")

# PyTorch's way from a module to its `forward`: the same two frames each time.
CALLS_OF_MODULES = frozenset((torch.nn.Module._call_impl.__code__, torch.nn.Module._wrapped_call_impl.__code__))
# The class whose methods the functions of `torch` are.
FUNCTIONS = torch._C._VariableFunctions

# How many levels of forward derivatives are open, and -1 if none is: asked for at every replay.
level_of_tangents: Callable[[], int] = partial(vars(torch.autograd.forward_ad).__getitem__, "_current_level")


def schema_if_any(op: object) -> torch.FunctionSchema | None:
    """Return the schema of an overload; `None` for an operation that is not PyTorch's."""
    return getattr(op, "_schema", None)


def is_batched(tensor: torch.Tensor) -> bool:
    """Return whether `vmap` has wrapped a tensor: that of `torch.func`, or the older one of `autograd.grad`."""
    functorch = torch._C._functorch
    return functorch.is_batchedtensor(tensor) or functorch.is_legacy_batchedtensor(tensor)


# Kernels run with Python dispatch modes still active (FakeTensorMode of torch.compile, vmap): meta inference must not
# see them, or a mode would trace our private meta tensors.


@contextmanager
def without_modes() -> Iterator[None]:
    """Leave PyTorch's modes and the level of forward derivatives, at which even the text of an error asks for
    tangents.
    """
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


def _device_hint(tensor: torch.Tensor) -> str:
    hint: str = "cpu" if _inference.of_the_cpu and tensor.is_meta else _usual_hint(tensor)
    return hint


patch_list.device_hint.put(_device_hint)


# Whether the overloads of an operator for tensors take numbers, too, which PyTorch wraps, by its name without "aten::".
takes_numbers_as_tensors = torch._C._should_allow_numbers_as_tensors


@contextmanager
def meta_kernels_for_the_cpu(of_the_cpu: bool) -> Iterator[None]:
    """Let meta kernels describe the CPU's results within a `with` block; they describe CUDA's where the two differ."""
    before, _inference.of_the_cpu = _inference.of_the_cpu, of_the_cpu
    try:
        yield
    finally:
        _inference.of_the_cpu = before


# Compares the geometry of many tensors at once with what it was: a tenth of the time that asking each in Python takes.
# Dynamo's guards are made of it; importing it imports no Dynamo.
TensorGuards = torch._C._dynamo.guards.TensorGuards

# A number that differs after every change of a dictionary. From Python 3.13 on an object stores its attributes inline,
# and an assignment to one of them changes the dictionary that shows them without a new number.
dict_version = torch._C._dynamo.guards.dict_version
DICT_VERSIONS_TELL = sys.version_info < (3, 13)

# How many tensors and others hold a storage, given its address: of aliases made in C++ Python knows nothing.
storage_use_count = torch._C._storage_Use_Count
tensor_use_count = torch.Tensor._use_count  # type: ignore[attr-defined]

transforms_are_active = torch._C._are_functorch_transforms_active

# Whether a tensor is a batch of gradients in a vectorized backward pass (`is_grads_batched=True`).
has_storage = torch._C._has_storage  # a tensor that functorch wraps has none
is_batch_of_gradients = torch._C._functorch.is_legacy_batchedtensor


def modes_of_calls() -> tuple[object, ...]:
    """Return the modes and hooks of saved tensors of this thread, which see calls before operators do."""
    functions = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    operators = [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]
    saved = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return (*functions, *operators, saved) if saved is not None else (*functions, *operators)


# PyTorch counts the writes of `_foreach_` operators in their kernels, not before them.
increment_version = torch._C._increment_version


# Of many small tensors on the CPU at once.
copy_each = torch._foreach_copy_
add_to_each = torch._foreach_add_


def exchange(kept: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange the tensors behind the Python objects `kept` and `other`.

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
    """Let `tensor` show the conjugate of its memory; in public only a new tensor can."""
    torch._C._set_tensor_metadata(tensor, {"conj": True})  # type: ignore[attr-defined]


from_dlpack = torch._C._from_dlpack
without_torch_function = torch._C.DisableTorchFunctionSubclass
without_torch_dispatch = torch._C._DisableTorchDispatch
plain_torch_dispatch: Any = torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]
profiler_is_running = torch._C._autograd._profiler_enabled  # of `torch.profiler`: whether it would keep an event


def exchange_device(module: Any, index: int, is_needed: bool) -> int:
    """Make `index` the ordinal of another backend's device module; return the previous one."""
    found: int = (module._exchange_device if is_needed else module._maybe_exchange_device)(index)
    return found


def mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Mark a dimension as one that changes from call to call. Imports Dynamo."""
    torch._dynamo.mark_dynamic(tensor, dim)


def define_quantized_operators() -> None:
    """Import the module that defines `torch.ops.quantized_decomposed`."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")


def renew_list_of_weights(module: torch.nn.RNNBase) -> None:
    """Update the list of weights that a recurrent layer keeps."""
    module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]


def raw_library(namespace: str) -> torch.library.Library:
    """Return a library to register kernels in."""
    return torch.library.Library(namespace, "IMPL")


def register_kernel(library: torch.library.Library, name: str, kernel: object) -> None:
    """Register `kernel` for PrivateUse1, without the checks of `Library.impl`, which take three times as long."""
    assert library.m is not None
    library.m.impl(name, "PrivateUse1", kernel)


def unregister(library: torch.library.Library) -> None:
    """Remove the registrations of `library`."""
    library._destroy()


def register_fallthrough(key: str) -> torch.library.Library:
    """Let every operator pass through the dispatch key `key`."""
    library = torch.library.Library("_", "IMPL", key)
    library.fallback(torch.library.fallthrough_kernel)
    return library


def register_fallback(key: str, kernel: object) -> torch.library.Library:
    """Call `kernel` with the overload and its arguments for every operator without a kernel for `key`."""
    library = torch.library.Library("_", "IMPL", key)
    library.fallback(kernel)
    return library


def register_last_fallback(key: str, kernel: Callable[..., object]) -> None:
    """Call `register_fallback` until the process ends: PyTorch undoes a `Library` when Python begins to end."""
    library = torch._C._dispatch_library("IMPL", "_", key, __file__, 0)
    library.fallback(key, kernel, False)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))


def register_autocast_kernel(library: torch.library.Library, name: str, kernel: object) -> None:
    """Register the behaviour of the operator `name` under `torch.autocast("xla")`."""
    assert library.m is not None
    library.m.impl(name, "AutocastPrivateUse1", kernel)


def replace_batching_rule(library: torch.library.Library, name: str, make: Callable[[Any], object]) -> None:
    """Replace the rule by which `vmap` batches an operator by what `make` returns of it. Both take dispatch keys."""
    assert library.m is not None
    rule = torch._C._dispatch_get_computed_kernel_for_dispatch_key(f"aten::{name}", "FuncTorchBatched")
    # PyTorch warns where a kernel takes the place of another one.
    quiet(UserWarning)(library.m.impl)(name, "FuncTorchBatched", make(rule.call_boxed), True)


# Of storages in the memory of the host: to a file, and from one.
write_storage: Callable[..., None] = torch.UntypedStorage._write_file
read_storage: Callable[..., object] = torch.UntypedStorage._set_from_file


def untyped(storage: torch.TypedStorage) -> torch.UntypedStorage:
    """Return the storage behind one of the older kind, whose public attribute warns."""
    return storage._untyped_storage


def reduced(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[object, ...]]:
    """Return the pickled form of a tensor as if its device had storages."""
    hooks: OrderedDict[object, object] = OrderedDict()
    shown = tensor.storage_offset(), tuple(tensor.size()), tensor.stride(), tensor.requires_grad, hooks
    metadata = torch._utils.get_tensor_metadata(tensor)
    last = (metadata,) if metadata else ()
    if tensor.dtype in torch.storage._new_dtypes():
        return torch._utils._rebuild_tensor_v3, (tensor.untyped_storage(), *shown, tensor.dtype, *last)
    return torch._utils._rebuild_tensor_v2, (tensor._typed_storage(), *shown, *last)


def fills_uninitialized_memory() -> bool:
    """Return `torch.utils.deterministic.fill_uninitialized_memory`, without what reading a module's property costs."""
    return torch._C._get_deterministic_fill_uninitialized_memory()


def higher_order_operators_ignore_autocast() -> None:
    """Let operators that take functions, of now and later, pass through autocast on our device as they do on CUDA's."""
    key = _autocast_key()
    defaults = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if key not in defaults:
        defaults.append(key)
        for op in torch._ops._higher_order_ops.values():
            op.fallthrough(key)


def register_autocast_of_flex_attention(kernel: Callable[..., object]) -> None:
    """Register the behaviour of `flex_attention` under `torch.autocast("xla")`."""
    flex_attention.py_impl(_autocast_key())(kernel)


def without_autocast() -> AbstractContextManager[None]:
    """Return a `with` block in which autocast is passed by."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_autocast_key()))


def _autocast_key() -> torch._C.DispatchKey:
    key = torch._C._parse_dispatch_key("AutocastPrivateUse1")
    assert key is not None
    return key


def below_autograd() -> AbstractContextManager[None]:
    """Return a `with` block in which autograd records nothing, as in the gradient formulas of PyTorch."""
    return torch._C._AutoDispatchBelowAutograd()


def fused_attention_enabled() -> bool:
    """Return false inside `sdpa_kernel(SDPBackend.MATH)`, which asks for the composition: it can be differentiated
    twice.
    """
    return torch._C._get_flash_sdp_enabled() or torch._C._get_overrideable_sdp_enabled()


def calls_are_watched() -> bool:
    """Return whether operators are transformed, traced or given tangents, so that only PyTorch's own may be called."""
    return (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.autograd.forward_ad._current_level >= 0
    )


def give_default_device(constructor: object) -> None:
    """Keep a constructor that is replaced in `torch` on the default device: the mode knows it by identity."""
    torch.utils._device._device_constructors().add(constructor)


def never_traced(function: F) -> F:
    """Return `function`, which `torch.compile` runs as it is.

    PyTorch calls our hooks while it traces a program, and would trace them too, hooks and all. `torch._dynamo.disable`
    says the same, at the price of importing Dynamo with us.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    frames.set_code_exec_strategy(function.__code__, skip)
    return function


def constant_in_graphs(function: Any) -> Any:
    """Return `function`, whose result `torch.compile` takes for a constant of the graph, instead of ending the graph at
    it.

    `torch._dynamo.assume_constant_result` says the same, at the price of importing Dynamo with us.
    """
    function._dynamo_marked_constant = True
    return function


def dtypes_by_default() -> tuple[torch.dtype | bool | None, ...]:
    """Return the settings that, with the arguments, decide the dtypes that a function computes in."""
    autocast = torch.is_autocast_enabled("xla")
    return autocast, torch.get_autocast_dtype("xla") if autocast else None, torch.get_default_dtype()


def is_traced() -> bool:
    """Return whether a trace of PyTorch observes calls now."""
    keys = torch._C._TorchDispatchModeKey
    return any(torch._C._get_dispatch_mode(key) is not None for key in (keys.FAKE, keys.FUNCTIONAL, keys.PROXY))


def ends_graphs(reason: str) -> Callable[[F], F]:
    """Return a decorator: `torch.compile` ends a graph at the function, and says why where there may be but one
    graph.
    """

    def mark(function: Any) -> Any:
        function._torchdynamo_disable = True
        function._torchdynamo_disable_msg = reason
        return function

    return mark


def must_be_one_graph() -> bool:
    """Return whether the `torch.compile` that traces the running program was given `fullgraph=True`."""
    translator: Any = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx()
    return bool(translator.output.root_tx.one_graph)


# Loops and branches, whose arguments are functions or graphs.
while_loop = while_loop_op
# The operator that orders calls with side effects: it takes a token and returns another one.
with_effects = torch.ops.higher_order.with_effects
cond = cond_op
scan = scan_op
map_loop = map_impl
associative_scan = associative_scan_op

# The functions that prepare what these two take.
scan_function = _scan
associative_scan_function = _associative_scan


def kernel_of_higher_order(operator: torch._ops.HigherOrderOperator, kernel: Callable[..., object]) -> None:
    """Call `kernel` when `operator` is called with tensors on PrivateUse1, outside of everything that traces."""
    operator.py_impl(torch._C.DispatchKey.PrivateUse1)(kernel)


def operator_if_defined(name: str) -> OpOverload | None:
    """Return the default overload of "space::name", or `None` before PyTorch has defined it."""
    space, _, short = name.partition("::")
    found = getattr(getattr(torch.ops, space), short, None)
    return None if found is None else found.default  # type: ignore[no-any-return]


def composition_of(operator: Any) -> Callable[..., Any]:
    """Return the Python composition of a higher-order operator, which reads conditions on the host."""
    return operator.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]


def dynamic_dims(value: object) -> set[int]:
    """Return the dimensions of a tensor that `torch._dynamo.mark_dynamic` has marked, or `maybe_mark_dynamic`."""
    marked: set[int] = getattr(value, "_dynamo_dynamic_indices", set()) | getattr(
        value, "_dynamo_weak_dynamic_indices", set()
    )
    return marked


def saved_tensors_hooks_in_force() -> tuple[Callable[..., object], Callable[..., object]] | None:
    """Return the present pack and unpack hooks of saved tensors. PyTorch's public interface only adds hooks."""
    found: tuple[Callable[..., object], Callable[..., object]] | None
    found = torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[attr-defined]
    return found


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Call `function` at the end of the running backward pass; raise `RuntimeError` if none is running."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def gradient_hooks(tensor: torch.Tensor) -> list[Callable[[torch.Tensor], torch.Tensor | None]]:
    """Return the hooks of a tensor's gradient. Code that computes gradients itself has to call them."""
    return list((tensor._backward_hooks or {}).values())


def hooks_after(tensor: torch.Tensor) -> list[Callable[[torch.Tensor], object]]:
    """Return the hooks that run when a gradient was added to `tensor.grad`."""
    return list((tensor._post_accumulate_grad_hooks or {}).values())


# PyTorch's precision of the products of a backend: "none" until it is set, "ieee", "tf32" or "bf16".
# `torch.get_float32_matmul_precision()` says "highest" both for the initial state and where it was asked for.
product_precision: Callable[[str, str], str] = torch._C._get_fp32_precision_getter


def keep_precompiled_graph(module: Any) -> None:
    """Let `torch.compiler.precompile` keep the graph of a function, where it would have Inductor lower it."""
    if module._backend == "inductor":
        module._backend = "eager"
