"""Every attribute of PyTorch and JAX that we replace, and why. Nothing else assigns to attributes of theirs.

The room that knows what should happen instead replaces it, by the entry here: `patch_list.pin_memory.wrap(...)`. Most
is replaced on import, some when it is first needed: an entry says whether it is in force. Other devices stay as they
are.

No attributes, and so not in the list: calls of `torch.Generator`, `torch.Event` and `torch.Stream`
(`class_calls.py`), the methods of our own device guard (`device_guard.py`), and what PyTorch and JAX have registries
for.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

# Modules with patched attributes that `import torch` does not import.
import torch.nn.attention.flex_attention
import torch.utils.checkpoint  # noqa: F401

ALL: list["Patch"] = []


class Patch:
    """One function, or another attribute, under every name it is called by.

    `since` is for what older releases lack.
    """

    def __init__(self, *names: str, since: str = "") -> None:
        self.names = names
        self.since = since
        self.in_force = False
        ALL.append(self)

    def wrap(self, wrapper: Callable[[Any], Any]) -> None:
        """Put what `wrapper` makes of it in its place."""
        owner, name = _found(self.names[0])
        if not self.since or hasattr(owner, name):
            self.put(wrapper(getattr(owner, name)))

    @contextmanager
    def wrapped(self, wrapper: Callable[[Any], Any]) -> Iterator[None]:
        """Inside, has what `wrapper` makes of it in its place; afterwards, what was there before."""
        owner, name = _found(self.names[0])
        original = getattr(owner, name)
        try:
            self.put(wrapper(original))
            yield
        finally:
            self.put(original)
            self.in_force = False

    def put(self, value: Any) -> None:
        """Put something else in its place."""
        for owner, name in map(_found, self.names):
            setattr(owner, name, value)
        self.in_force = True

    def take_back(self) -> None:
        """Let a class have what it inherits again."""
        for owner, name in map(_found, self.names):
            delattr(owner, name)
        self.in_force = False


def _found(path: str) -> tuple[Any, str]:
    """Return the owner of an attribute, and the attribute's name. A function may have the name of its module."""
    *owners, name = path.split(".")
    depth = max(count for count in range(1, len(owners) + 1) if ".".join(owners[:count]) in sys.modules)
    return reduce(getattr, owners[depth:], sys.modules[".".join(owners[:depth])]), name


def _each(owner: str, *names: str) -> dict[str, Patch]:
    return {name.strip("_"): Patch(f"{owner}.{name}") for name in names}


# `is_xla` is a C++ test for a device type that PyTorch gave the name before us.
is_xla = Patch("torch.Tensor.is_xla")
# Every device with a module of its own has such a method (`.cuda()`); PyTorch's generator of them refuses the name,
# because `is_xla` exists.
tensor_xla = Patch("torch.Tensor.xla")
module_xla = Patch("torch.nn.Module.xla")
# A module that moves between the host and `xla` keeps its Parameter objects: tied weights stay tied, and an optimizer
# made before the move keeps training them. PyTorch makes new Parameters between unlike devices.
module_apply = Patch("torch.nn.Module._apply")
# PyTorch's methods would look at memory that is not there.
storage_methods = _each(
    "torch.UntypedStorage",
    "nbytes", "size", "__len__", "data_ptr", "resize_", "fill_", "__getitem__", "__setitem__", "__iter__", "tolist",
    "new", "is_shared", "_write_file", "_set_from_file", "share_memory_", "copy_",
)  # fmt: skip
storage_new = Patch("torch.UntypedStorage.__new__")
data_ptr = Patch("torch.Tensor.data_ptr")
# PyTorch copies and pickles tensors of a device called "xla" one by one, as if they had no storage: tensors would no
# longer share memory, and a view would lose its strides.
deepcopy = Patch("torch.Tensor.__deepcopy__")
reduce_ex = Patch("torch.Tensor._reduce_ex_internal")
# PyTorch's C++ saves and loads scripts, and looks at the memory of their tensors.
saving_scripts = {
    name: Patch(f"torch._C.{name}")
    for name in (
        "ScriptModule.save", "ScriptModule.save_to_buffer", "ScriptModule._save_for_mobile",
        "ScriptModule._save_to_buffer_for_mobile", "ScriptFunction.save", "ScriptFunction.save_to_buffer",
        "_save_jit_module", "_save_jit_module_to_bytes",
    )
}  # fmt: skip
serialize_script = Patch("torch._C.ScriptModuleSerializer.serialize")
load_script = Patch("torch.jit.load", "torch.jit._serialization.load")
# PyTorch lets only CUDA devices offer their memory to NumPy, JAX and others without a copy,
dlpack = Patch("torch.Tensor.__dlpack__")
dlpack_device = Patch("torch.Tensor.__dlpack_device__")
# writes down an address that an `xla` tensor does not have,
to_dlpack = Patch("torch.utils.dlpack.to_dlpack", "torch.to_dlpack")
# and copies a capsule to another device, knowing no `xla` behind one.
asarray = Patch("torch.asarray")
# Checkpoints save memory although the whole step is one program. Without reentry the frame holds the function that
# computes again; with it, the inputs are detached first.
checkpoint_frame = Patch("torch.utils.checkpoint._CheckpointFrame.__init__")
detach_variable = Patch("torch.utils.checkpoint.detach_variable")
# PyTorch's default for devices it does not know is float16; that of `xla` is documented as bfloat16.
autocast = Patch("torch.autocast.__init__")
# PyTorch makes the result on the current ordinal instead of that of the tensor.
new_tensor = Patch("torch.Tensor.new_tensor")
# PyTorch asks the accelerator for pinned memory, and `xla` becomes the accelerator by being imported: a loader with
# `pin_memory=True` must work for those who never use it.
pin_memory = Patch("torch.Tensor.pin_memory")
is_pinned = Patch("torch.Tensor.is_pinned")
# PyTorch takes streams of its own class alone. A device of ours has one, so memory is given back in its order.
record_stream = Patch("torch.Tensor.record_stream")
# PyTorch calls a Python function for each element in the memory of the host alone.
calls_for_elements = _each("torch.Tensor", "apply_", "map_", "map2_")
# Recording is Python, and Python runs one thread at a time: PyTorch's backward thread for our device would only take
# turns with the caller's. Without it a step is recorded faster, and the user's line is on the stack.
run_backward = Patch("torch.autograd.graph._engine_run_backward", "torch.autograd._engine_run_backward")
# PyTorch lists the devices that may attend by a function of the user's; the operator itself runs on every one.
devices_of_flex_attention = Patch("torch.nn.attention.flex_attention._validate_device")
# The first step of SGD computes its momentum in another way than all others, which would be a program of its own.
first_momentum = Patch("torch.optim.SGD._init_group")
# Libraries give operators an implementation for "XLA", which is PyTorch's key of another backend by our name.
library_impl = Patch("torch.library.Library.impl")
# The meaning of a recorded call may depend on the default dtype; reading it at every call would cost more. All public
# functions that set it call these two.
default_dtype = _each("torch._C", "_set_default_dtype", "_set_default_tensor_type")
# PyTorch treats a Python backend as the accelerator from the import on. These functions answer for it in Python.
accelerator = {
    name: Patch(f"torch._C._accelerator_{name}")
    for name in (
        "getAccelerator", "getDeviceIndex", "setDeviceIndex", "exchangeDevice", "maybeExchangeDevice",
        "synchronizeDevice", "getStream", "setStream", "getDeviceCapability", "isAllocatorInitialized", "emptyCache",
        "getDeviceStats", "getMemoryInfo", "resetPeakStats", "resetAccumulatedStats",
        # The same questions, which PyTorch puts to the hooks of the backend in C++: a backend in Python has none.
        "hooks_device_count", "hooks_get_current_device", "hooks_set_current_device", "hooks_exchange_device",
        "hooks_maybe_exchange_device",
    )
}  # fmt: skip
# PyTorch calls the allocator of pinned memory without looking whether the backend has one: the process would crash.
empty_host_cache = Patch("torch._C._accelerator_emptyHostCache", since="2.12")
# The accelerator, or the CPU if there is none;
accelerator_or_host = Patch("torch._C._get_accelerator")
# what `DataParallel` spreads a module over, for that class alone;
data_parallel_type = Patch("torch.nn.parallel.data_parallel._get_available_device_type")
# and `FakeTensorMode`, whether this device is one to be initialised: before 2.12 it asks for CUDA alone.
is_to_be_initialised = Patch("torch._subclasses.fake_tensor._is_privateuse1_backend_available", since="2.12")
# Meta kernels describe CUDA's results where they differ from the CPU's.
device_hint = Patch("torch._meta_registrations.device_hint")
# The hooks of autograd nodes cannot be read; but all registrations go through this function.
hooks_of_nodes = Patch("torch.autograd.function._HookMixin._register_hook")
# Attributes of a tensor that are not compared from call to call. While a listener is registered, reads are reported.
told_attributes = _each("torch.Tensor", "_version", "_base", "_cdata")
# Composite operators with a rule have no forward-mode derivative: they are decomposed while one is computed.
enter_dual_level = Patch("torch.autograd.forward_ad.enter_dual_level")
exit_dual_level = Patch("torch.autograd.forward_ad.exit_dual_level")
# To prepare Dynamo for us takes seconds: its first call does.
compile = Patch("torch.compile")
# Inductor raises `KeyError: 'xla'` for a graph on `xla`, and it is what `torch.compile(model)` means: PyTorch offers a
# default backend for the whole process only, none for a device.
call_inductor = Patch("torch._TorchCompileInductorWrapper.__call__")
# Dynamo guards the parts of a `DTensor`, and of one that shows memory of its own would guard nothing.
wrap_tensor = Patch("torch._dynamo.variables.builder.VariableBuilder.wrap_tensor")
# Of functions that are arguments of one whose result is constant, Dynamo guards too little. JAX's jitted functions are
# objects, which it gives to none before 2.12.
result_as_constant = Patch("torch._dynamo.variables.functions.invoke_and_store_as_constant")
# Transforms of `torch.func` wrap their arguments before a function of PyTorch sees them: in the body of a loop, they
# must wrap the replacement of a tensor that the body closes over.
wrap_for_grad = Patch("torch._functorch.eager_transforms._wrap_tensor_for_grad")
wrap_for_vmap = Patch("torch._functorch.vmap._add_batch_dim")
# For a mesh of "xla" devices PyTorch makes no process groups, and knows a process by one rank.
mesh_init = Patch("torch.distributed.device_mesh.DeviceMesh.__init__")
mesh_group = Patch("torch.distributed.device_mesh.DeviceMesh.get_group")
mesh_local_rank = Patch("torch.distributed.device_mesh.DeviceMesh.get_local_rank")
mesh_rank = Patch("torch.distributed.device_mesh.get_rank")
# `torch.distributed.tensor.zeros` and the like make parts, where XLA divides the whole.
dtensor_constructor = Patch("torch.distributed.tensor._api._dtensor_init_helper")
from_local = Patch("torch.distributed.tensor.DTensor.from_local")
# `fully_shard` moves parameters by `tensor.data = ...`, which PyTorch refuses between kinds of memory.
move_states = Patch("torch.distributed.fsdp._fully_shard._fsdp_init._move_states_to_device")
# Parts of distributed tensors draw from where CUDA counts in its random state.
region_of_draws = Patch("torch.distributed.tensor._random.OffsetBasedRNGTracker._distribute_region")
# The norm of gradients that are divided among processes is the norm of all shards.
total_norm = Patch("torch.nn.utils.clip_grad._get_total_norm", "torch.nn.utils.get_total_norm")
# `DistributedDataParallel` reduces gradients in C++, in memory of the host or of CUDA.
reducer = Patch("torch.distributed.Reducer")
hook_of_reducer = Patch("torch.distributed._register_comm_hook")
builtin_hook_of_reducer = Patch("torch.distributed._register_builtin_comm_hook")
# Objects pass as bytes, in the memory of the host.
device_of_objects = Patch("torch.distributed.distributed_c10d._get_object_coll_device")
# Sends and receives of a batch belong together, which PyTorch says to groups in C++ alone.
batch_isend_irecv = Patch("torch.distributed.distributed_c10d.batch_isend_irecv", "torch.distributed.batch_isend_irecv")
# PyTorch's profiler takes the events of a device from libraries in C++ alone.
profiler = _each(
    "torch.autograd.profiler.profile", "_start_trace", "__exit__", "_parse_kineto_results", "export_chrome_trace"
)
# JAX makes a context for each module that it lowers; to make one costs as much as a small program.
module_context = Patch("jax._src.interpreters.mlir.make_ir_context")
