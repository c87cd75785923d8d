"""Every private name of Dynamo and AOTAutograd that the engine borrows. Importing this imports both."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import overrides
from torch._C._dynamo import eval_frame
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import trace_rules
from torch._dynamo.backends import registry
from torch._dynamo.backends.common import aot_autograd as aot_autograd
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables.base import AsPythonConstantNotImplementedError, VariableTracker
from torch._dynamo.variables.functions import SkipFunctionVariable, UserFunctionVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable
from torch._functorch.aot_autograd import aot_export_joint_simple as aot_export_joint_simple
from torch._functorch.aot_autograd import aot_module_simplified as aot_module_simplified
from torch._functorch.partitioners import default_partition as default_partition
from torch._functorch.partitioners import (
    min_cut_rematerialization_partition as min_cut_rematerialization_partition,
)
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._guards import TracingContext, tracing
from torch._prims import rng_prims
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils.weak import TensorWeakRef

from .. import patch_list
from .torch import pytree

# Exceptions of PyTorch where a trace depends on a value.
READS_ON_THE_HOST = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


def described(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors without memory, as these are: of fixed sizes, although what is traced with them may make new
    ones.
    """
    # Separate tensors, although some may share memory: a pure function cannot observe that.
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in tensors]


_torch: Any = torch
_functional = SimpleNamespace(
    sync=_torch._sync, value=_torch._from_functional_tensor, is_written=_torch._functionalize_has_data_mutation
)


def _tracer() -> Any:
    mode: Any = get_proxy_mode()
    return mode.tracer


class FunctionalTrace:
    """A trace of functional operators, of one run of a function, in which new inputs may be made on the way."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        self._count = 0  # of the inputs that were made on the way

    def run(
        self,
        function: Callable[..., object],
        tensors: Sequence[torch.Tensor],
        table: dict[torch._ops.OpOverload, Callable[..., object]],
    ) -> GraphModule:
        """Return the graph of `function`, called with tensors without memory that are like `tensors`."""
        with self._mode:
            like = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in tensors]

        def functional(*given: torch.Tensor) -> object:
            inputs = [FunctionalTensor.to_functional(each) for each in given]
            for each, tensor in zip(inputs, tensors, strict=True):
                each.requires_grad_(tensor.requires_grad)
            return function(*inputs)

        with (
            torch.autograd.set_multithreading_enabled(False),
            self._mode,
            enable_python_dispatcher(),
            FunctionalTensorMode(),
        ):
            made: GraphModule = make_fx(functional, decomposition_table=table)(*like)
        inputs = [node for node in made.graph.nodes if node.op == "placeholder"]
        for before, node in zip(inputs, inputs[1:], strict=False):
            before.append(node)
        made.recompile()
        return made

    def input(self, like: torch.Tensor) -> torch.Tensor:
        """Return one more input of the graph, for a tensor like `like`."""
        tracer = _tracer()
        with _disable_current_modes(), self._mode:
            fake = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
        proxy = tracer.create_proxy("placeholder", f"more_{self._count}", (), {})
        self._count += 1
        track_tensor_tree(fake, proxy, constant=None, tracer=tracer)
        return FunctionalTensor.to_functional(fake)  # type: ignore[no-any-return]

    def position(self) -> int:
        """Return how many nodes the graph has so far."""
        return len(_tracer().graph.nodes)

    @staticmethod
    def belongs(tensor: torch.Tensor) -> bool:
        """Return whether `tensor` is an input of the trace or was computed in it."""
        return isinstance(tensor, FunctionalTensor)

    @staticmethod
    def plain(tensor: Any) -> torch.Tensor:
        """Return the value of `tensor` as the graph's output has it."""
        _functional.sync(tensor)
        return _functional.value(tensor.elem)

    @staticmethod
    def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor that `tensor` is a view of."""
        return tensor._base if tensor._is_view() else None

    @staticmethod
    def is_written(tensor: Any) -> bool:
        """Return whether an input was written to."""
        _functional.sync(tensor)
        return bool(_functional.is_written(tensor.elem))


def register_backend(backend: Callable[..., Any], name: str) -> None:
    """Make `backend` the meaning of `torch.compile(backend=name)`, also if PyTorch has already registered the name."""
    registry.list_backends()  # PyTorch registers its own first
    registry._COMPILER_FNS.pop(name, None)
    registry.register_backend(backend, name=name)


def draw_again(state: Callable[[], torch.Tensor], restore: Callable[[torch.Tensor], None]) -> None:
    """Let compiled graphs draw random numbers of "xla" again in a checkpoint's recomputation.

    PyTorch calls each such operator by way of two others, which keep and restore the random state, and which know only
    its own backends.
    """

    def save(operator: Callable[..., object], *args: object, **kwargs: object) -> tuple[torch.Tensor, object]:
        return state(), operator(*args, **kwargs)

    def repeat(kept: torch.Tensor, operator: Callable[..., object], *args: object, **kwargs: object) -> object:
        current = state()
        restore(kept)
        try:
            return operator(*args, **kwargs)
        finally:
            restore(current)

    for around, first, ours in (
        (rng_prims.run_and_save_rng_state, 1, save),
        (rng_prims.run_with_rng_state, 2, repeat),
    ):
        theirs = around.py_kernels[torch._C.DispatchKey.BackendSelect]
        kernel = functools.partial(_by_device, ours, theirs, first)
        around.py_kernels[torch._C.DispatchKey.BackendSelect] = kernel
        around._dispatch_cache.clear()


def _by_device(
    ours: Callable[..., object], theirs: Callable[..., object], first: int, *args: Any, **kwargs: Any
) -> object:
    # PyTorch's own function for this names no device of others before 2.13.
    named = kwargs.get("device")
    devices = [torch.device(named)] if named else [each.device for each in args[first:] if torch.is_tensor(each)]
    kernel = ours if any(device.type == "xla" for device in devices) else theirs
    return kernel(*args, **kwargs)


def route_inductor(
    is_ours: Callable[[GraphModule, Sequence[object]], bool], backend: Callable[[GraphModule, Sequence[object]], object]
) -> None:
    """Let `backend` compile the graphs for which `is_ours(graph, examples)` holds, where Inductor is asked to.

    `torch.compile` calls Inductor by an object that knows its mode and options; `torch._dynamo.optimize("inductor")`
    finds it by name.
    """

    def in_compile(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def call(self: Any, model: GraphModule, examples: Sequence[object], **options: object) -> object:
            if not is_ours(model, examples):
                return original(self, model, examples, **options)
            if self.compiler_name == "aotinductor":
                raise RuntimeError(
                    "AOTInductor was asked to compile a graph with tensors on xla, and makes code for the CPU and for "
                    "GPUs alone. Save the program by torch_xla.stablehlo, or move the model to another device."
                )
            return backend(model, examples)

        return call

    def by_name(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def inductor(model: GraphModule, examples: Sequence[object], **options: object) -> object:
            return backend(model, examples) if is_ours(model, examples) else original(model, examples, **options)

        return inductor

    patch_list.call_inductor.wrap(in_compile)
    register_backend(by_name(registry.lookup_backend("inductor")), "inductor")


def check_mode_and_options(mode: str | None, options: Mapping[str, object] | None) -> None:
    """Raise what `torch.compile` raises for a mode or an option that Inductor does not know."""
    torch._TorchCompileInductorWrapper(mode, options, None)  # type: ignore[no-untyped-call]


def guard_distributed() -> None:
    """Let Dynamo guard a `DTensor` that shows memory of its own as it guards plain tensors: by size, dtype and device.

    Of others it guards the parts, and of this one it would guard nothing.
    """

    def wrapper(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def wrap_tensor(self: Any, value: torch.Tensor) -> object:
            found = original(self, value)
            if isinstance(value, torch.distributed.tensor.DTensor) and not is_traceable_wrapper_subclass(value):
                self.install_guards(functools.partial(GuardBuilder.TENSOR_MATCH, value=TensorWeakRef(value)))
            return found

        return wrap_tensor

    patch_list.wrap_tensor.wrap(wrapper)


def leave_generators_to_python() -> None:
    """Let Dynamo treat an object of a subclass of `torch.Generator` as it treats a generator: draws end its graph."""

    def wrapper(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def wrap(self: Any, value: object) -> object:
            if isinstance(value, torch.Generator) and type(value) is not torch.Generator:
                return self.wrap_user_defined(value)
            return original(self, value)

        return wrap

    patch_list.wrap_value.wrap(wrapper)


def guard_arguments_of_constants() -> None:
    """Let Dynamo guard by identity the functions that our functions with a constant result are given.

    By itself it guards their code, which all functions share that were made by one. And has it call them with objects,
    and guard these, as it does from 2.12 on.
    """

    def guard(argument: object) -> None:
        if isinstance(argument, (UserFunctionVariable, SkipFunctionVariable)) and argument.source is not None:
            install_guard(argument.source.make_guard(GuardBuilder.ID_MATCH))

    def as_constant(argument: object) -> object:
        argument = LazyVariableTracker.realize_all(argument)
        VariableTracker.visit(guard, argument)
        if not isinstance(argument, UserDefinedObjectVariable) or argument.is_tensor():
            return argument
        try:
            argument.as_python_constant()
        except AsPythonConstantNotImplementedError:
            if argument.source is not None:
                install_guard(argument.source.make_guard(GuardBuilder.ID_MATCH))
            return SimpleNamespace(is_tensor=lambda: False, as_python_constant=lambda: argument.value)
        return argument

    def wrapper(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def invoke(tx: object, fn: object, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
            if not str(getattr(fn, "__module__", "")).startswith("torch_xla."):
                return original(tx, fn, name, args, kwargs)
            return original(
                tx, fn, name, list(map(as_constant, args)), {key: as_constant(value) for key, value in kwargs.items()}
            )

        return invoke

    patch_list.result_as_constant.wrap(wrapper)


def takes_a_list(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Return `function`, which takes its arguments as one list and may empty it."""
    function._boxed_call = True  # type: ignore[attr-defined]
    return function


def results_of_the_user(kind: str) -> int:
    """Return how many of a graph's results AOTAutograd returns from the call that it compiles the graph for.

    Those of a forward graph that come behind are kept for the backward graph, which returns gradients.
    """
    context = TracingContext.try_get()
    metadata = None if context is None or kind != "forward" else context.fw_metadata
    return 0 if metadata is None else metadata.num_forward_returns


def never_trace(package: str) -> None:
    """Let Dynamo run the functions of `package` without tracing them."""
    trace_rules.add(package)


def innermost(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that transforms of `torch.func` have wrapped, or `tensor` itself."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


@contextmanager
def given_to_transforms(instead: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Give the transforms of `torch.func` `instead(tensor)` for each tensor argument within a `with` block.

    Outside they must be PyTorch's own: Dynamo traces these, and refuses functions of ours.
    """

    def wrapper(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def wrap(value: object, *args: object, **kwargs: object) -> object:
            return original(instead(value) if isinstance(value, torch.Tensor) else value, *args, **kwargs)

        return wrap

    with patch_list.wrap_for_grad.wrapped(wrapper), patch_list.wrap_for_vmap.wrapped(wrapper):
        yield


def are_given_to_transforms() -> bool:
    """Return whether the transforms of `torch.func` take other tensors now."""
    return patch_list.wrap_for_grad.in_force or patch_list.wrap_for_vmap.in_force


def leave_function_mode(mode: object) -> None:
    """Take `mode` off the stack of modes of functions, if it is the innermost."""
    if overrides._get_current_function_mode() is mode:
        overrides._pop_mode()


@contextmanager
def outside_of_traces() -> Iterator[None]:
    """Hide calls from traces and transforms within a `with` block; loops and branches call functions without Dynamo."""
    callback = eval_frame.set_eval_frame(None)  # Dynamo's, between the graphs of a compiled function
    try:
        with (
            _disable_current_modes(),
            temporarily_clear_interpreter_stack(),
            tracing(None),
            torch.compiler.set_stance("force_eager"),
        ):
            yield
    finally:
        eval_frame.set_eval_frame(callback)


def make_traceable(
    operator: torch._ops.HigherOrderOperator, make: Callable[[object, Sequence[object]], Sequence[torch.Tensor]]
) -> None:
    """Make an operator that takes graphs traceable. `make` returns its results for arguments without memory.

    The operator has no gradient; an `autograd.Function` calls it.
    """

    def below_autograd(*args: object) -> object:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    def functional(ctx: Any, *args: object) -> object:
        given = ctx.unwrap_tensors(args)
        with ctx.redispatch_to_next():
            return ctx.wrap_tensors(operator(*given))

    def described(mode: FakeTensorMode, *args: object) -> object:
        with mode:
            return make(operator, args)

    def noted(mode: Any, *args: object) -> object:
        root = mode.tracer.root
        for graph in args:
            if isinstance(graph, GraphModule):
                number = sum(name.startswith("body_") for name in root._modules)
                root.register_module(f"body_{number}", graph)
        with disable_proxy_modes_tracing():
            results = operator(*args)
        taken = pytree.tree_map(mode.tracer.unwrap_proxy, args)
        call = mode.tracer.create_proxy("call_function", operator, taken, {})
        return track_tensor_tree(results, call, constant=None, tracer=mode.tracer)

    operator.py_impl(torch._C.DispatchKey.Autograd)(below_autograd)
    operator.py_functionalize_impl(functional)
    operator.py_impl(FakeTensorMode)(described)
    operator.py_impl(ProxyTorchDispatchMode)(noted)
