"""Every attribute of PyTorch and JAX that we replace: why, until when, and the test that fails without it.

Nothing else assigns to attributes of theirs. The room that knows what should happen instead replaces it, by the entry
here: `patch_list.pin_memory.wrap(...)`. Most is replaced on import, some when it is first needed: an entry says whether
it is in force. Other devices stay as they are. `python -m tests.patches` leaves out one after the other, and sees its
test fail; `docs/patches.md` is written from this list.
"""

# Modules with patched attributes that `import torch` does not import.
import torch.nested._internal.sdpa
import torch.nn.attention.flex_attention
import torch.utils.checkpoint  # noqa: F401

from .patch import Patch, each

# Files of tests, below `tests/`.
_TORCH_PATCHES = "engine/dispatch/register/test_torch_patches.py"
_NN_MODULES = "engine/dispatch/register/test_nn_modules.py"
_UNTYPED_STORAGES = "engine/dispatch/register/test_untyped_storages.py"
_TORCHSCRIPT = "engine/dispatch/register/test_torchscript.py"
_OPTIMIZER_STEPS = "engine/dispatch/ops/test_optimizer_steps.py::test_a_step_is_one_operation"
_DLPACK_PROTOCOL = "engine/dispatch/register/test_dlpack_protocol.py"
_TORCH_ACCELERATOR = "engine/dispatch/register/test_torch_accelerator.py"
_DEVICE_HOOKS = "engine/dispatch/register/test_device_hooks.py"
_AUTOGRAD_OBSERVERS = "engine/compat/patches/test_autograd_observers.py"
_DDP_REDUCER = "engine/distributed/test_ddp_unused_parameters.py"
_PROCESS_GROUP = "engine/distributed/test_process_group.py"
_TORCH_PROFILER = "engine/diagnostics/profiles/test_torch_profiler.py"
_TORCH = "engine/compat/names/test_torch.py"
_DISTRIBUTED_TENSORS = "api/distributed/test_distributed_tensors.py::test_distributed_tensors_on_a_mesh"

is_xla = Patch(
    "torch.Tensor.is_xla",
    why='It is a C++ test for a device type that PyTorch named "xla" before us.',
    until="It compares with the name of PrivateUse1.",
    test=_TORCH_PATCHES + "::test_tensors_and_modules_move_by_a_method_of_the_name",
)
tensor_xla, module_xla = each(
    "torch",
    why="Each device has such a method (`.cuda()`); PyTorch makes none of this name, because `is_xla` exists.",
    until="`generate_methods_for_privateuse1_backend` accepts the name.",
    tests={_TORCH_PATCHES + "::test_tensors_and_modules_move_by_a_method_of_the_name": "Tensor.xla nn.Module.xla"},
).values()
module_apply = Patch(
    "torch.nn.Module._apply",
    why="PyTorch makes new Parameters between unlike devices: optimizers and tied weights would keep the old.",
    until="`Module.to` keeps Parameter objects between unlike devices.",
    test=_NN_MODULES + "::test_an_optimizer_made_before_the_move_trains_the_moved_parameters",
)
storage_methods = each(
    "torch.UntypedStorage",
    why="PyTorch's methods use memory of the host, and a storage on `xla` has none.",
    until="A backend in Python can give the methods of its storages.",
    tests={
        _UNTYPED_STORAGES + "::test_bytes_are_read_and_written_as_on_the_cpu": (
            "nbytes __len__ fill_ __getitem__ __setitem__ new"
        ),
        _UNTYPED_STORAGES + "::test_addresses_tell_memory_apart_and_follow_offsets": "data_ptr resize_",
        _UNTYPED_STORAGES + "::test_all_bytes_are_read_at_once": "__iter__",
        _UNTYPED_STORAGES + "::test_memory_of_the_device_is_not_shared_and_is_sent_as_a_copy": (
            "is_shared share_memory_"
        ),
        _UNTYPED_STORAGES + "::test_a_storage_goes_to_a_file_of_the_old_format_and_comes_back": (
            "_write_file _set_from_file"
        ),
        _UNTYPED_STORAGES + "::test_a_storage_goes_to_a_file_and_comes_back": "copy_",
    },
)
storage_new = Patch(
    "torch.UntypedStorage.__new__",
    why="PyTorch makes storages of bytes and sizes by the allocator of the device, and a backend in Python has none.",
    until="A backend in Python can make its storages.",
    test=_UNTYPED_STORAGES + "::test_a_storage_is_made_by_size_or_of_bytes",
)
data_ptr = Patch(
    "torch.Tensor.data_ptr",
    why="Every tensor on `xla` would have the address 0, and programs compare addresses.",
    until="A backend in Python can give the addresses of its tensors.",
    test=_UNTYPED_STORAGES + "::test_addresses_tell_memory_apart_and_follow_offsets",
)
deepcopy, reduce_ex = each(
    "torch.Tensor",
    why=(
        'PyTorch copies and pickles tensors of a device called "xla" one by one, as if they had no storage: '
        "tensors would no longer share memory, and a view would lose its strides."
    ),
    until="PyTorch copies and pickles tensors of PrivateUse1 by their storages whatever its name.",
    tests={
        _UNTYPED_STORAGES + "::test_copies_of_tensors_on_one_storage_are_on_one": "__deepcopy__",
        "engine/tensor/test_serialization.py::test_a_saved_dictionary_comes_back_as_it_was": "_reduce_ex_internal",
    },
).values()
saving_scripts = each(
    "torch._C",
    why="PyTorch's C++ writes the memory of a script's tensors.",
    until="TorchScript asks a backend in Python for the bytes of a tensor.",
    tests={
        _TORCHSCRIPT + "::test_every_way_to_save_writes_the_values": (
            "ScriptModule.save ScriptModule._save_for_mobile ScriptModule._save_to_buffer_for_mobile "
            "_save_jit_module _save_jit_module_to_bytes"
        ),
        _TORCHSCRIPT + "::test_what_is_saved_from_the_device_is_loaded_with_its_values": "ScriptModule.save_to_buffer",
        _TORCHSCRIPT + "::test_constants_on_the_device_are_refused": (
            "ScriptFunction.save ScriptFunction.save_to_buffer"
        ),
    },
)
serialize_script = Patch(
    "torch._C.ScriptModuleSerializer.serialize",
    why="`torch.package` writes the memory of a script's tensors in C++.",
    until="TorchScript asks a backend in Python for the bytes of a tensor.",
    test=_TORCHSCRIPT + "::test_every_way_to_save_writes_the_values",
)
load_script = Patch(
    "torch.jit.load",
    "torch.jit._serialization.load",
    why="PyTorch's C++ writes what it loads into the memory of tensors.",
    until="TorchScript gives a backend in Python the bytes of a tensor.",
    test=_TORCHSCRIPT + "::test_what_is_saved_from_the_device_is_loaded_with_its_values",
)
dlpack = Patch(
    "torch.Tensor.__dlpack__",
    why="PyTorch lets only its own devices offer their memory without a copy.",
    until="A backend can make its own capsules.",
    test=_DLPACK_PROTOCOL + "::test_numpy_and_jax_take_the_memory_itself",
)
dlpack_device = Patch(
    "torch.Tensor.__dlpack_device__",
    why="PyTorch names the memory by its device type, while `xla` may be memory of the host or of CUDA.",
    until="A backend can say which memory a tensor has.",
    test=_DLPACK_PROTOCOL + "::test_numpy_and_jax_take_the_memory_itself",
)
to_dlpack = Patch(
    "torch.utils.dlpack.to_dlpack",
    "torch.to_dlpack",
    why="PyTorch's C++ writes down an address that an `xla` tensor does not have.",
    until="A backend can make its own capsules.",
    test=_DLPACK_PROTOCOL + "::test_both_functions_of_pytorch_make_capsules_of_it_and_of_others",
)
asarray = Patch(
    "torch.asarray",
    why="PyTorch copies a capsule to another device, and does not find the `xla` tensor behind it.",
    until="A backend can make tensors of capsules.",
    test=_DLPACK_PROTOCOL + "::test_asarray_finds_the_tensor_behind_a_capsule",
)
checkpoint_frame, detach_variable = each(
    "torch.utils.checkpoint",
    why=(
        "The whole step is one program, in which XLA would merge what a checkpoint computes again with what "
        "it computed before. Without reentry the frame holds the function that computes again; with it, the "
        "inputs are detached first."
    ),
    until="A device can wrap the function that computes again.",
    tests={
        "engine/dispatch/ops/test_activation_checkpointing.py::test_a_checkpoint_saves_memory_and_changes_nothing": (
            "_CheckpointFrame.__init__ detach_variable"
        ),
    },
).values()
autocast = Patch(
    "torch.autocast.__init__",
    why="The default dtype of devices that PyTorch does not know is float16, and that of `xla` bfloat16.",
    until="A backend can give its default dtype of autocast.",
    test="api/test_amp.py::test_the_default_is_bfloat16_in_every_thread",
)
new_tensor = Patch(
    "torch.Tensor.new_tensor",
    why="PyTorch makes the result on the current ordinal instead of that of the tensor.",
    until="`new_tensor` uses the ordinal of the tensor.",
    test="engine/dispatch/test_ordinals.py::test_four_devices",
)
pin_memory, is_pinned = each(
    "torch.Tensor",
    why="PyTorch asks the accelerator for pinned memory, also in programs that never use `xla`.",
    until="A backend in Python can give its allocator of pinned memory.",
    tests={
        _TORCH_PATCHES + "::test_memory_of_the_host_is_as_good_as_pinned_and_says_it_is_not": "pin_memory is_pinned",
    },
).values()
record_stream = Patch(
    "torch.Tensor.record_stream",
    why="PyTorch takes streams of its own class in C++. Our devices have one stream: nothing needs to be recorded.",
    until="`record_stream` is an operator that a backend in Python can register with its streams.",
    test=_TORCH_PATCHES + "::test_memory_belongs_to_the_one_stream",
)
calls_for_elements = each(
    "torch.Tensor",
    why="PyTorch calls a Python function for each element in the memory of the host only.",
    until="These methods are operators.",
    tests={_TORCH_PATCHES + "::test_a_python_function_is_called_for_each_element_on_the_host": "apply_ map_ map2_"},
)
run_backward = Patch(
    "torch.autograd.graph._engine_run_backward",
    "torch.autograd._engine_run_backward",
    why="Recording is Python: PyTorch's backward thread would take turns with the caller's, and hide its lines.",
    until="A backend can ask for backward in the thread of the caller.",
    test=_TORCH_PATCHES + "::test_backward_runs_in_the_thread_of_who_calls_it",
)
devices_of_flex_attention = Patch(
    "torch.nn.attention.flex_attention._validate_device",
    why="PyTorch lists the devices that may attend by a user's function; the operator runs on every one.",
    until="The list is open to PrivateUse1.",
    test="engine/dispatch/ops/test_flex_attention.py::test_functions_change_scores_and_mask_keys",
)
kernel_of_jagged_attention, padded_heads = each(
    "torch.nested._internal.sdpa",
    why="PyTorch attends to jagged tensors by kernels of GPUs, and elsewhere by nested tensors that are strided.",
    until="A backend can say which operator attends to jagged tensors.",
    tests={
        "engine/dispatch/ops/test_packed_attention.py::test_jagged_tensors_attend_one_by_one": (
            "_select_sdp_backend _pad_last_dim"
        ),
    },
).values()
first_momentum = Patch(
    "torch.optim.SGD._init_group",
    why="The first step of SGD computes its momentum in another way, which would be a program of its own.",
    until="SGD fills its momentum with zeros when it is made, as other optimizers do.",
    test="engine/dispatch/test_optimizer_state_init.py::test_all_steps_are_one_program",
)
multi_tensor_adam, multi_tensor_sgd = each(
    "torch.optim",
    why="PyTorch calls up to fifteen operators on lists of all parameters, and each is recorded, which costs the host.",
    until="The fused implementation is the default.",
    tests={_OPTIMIZER_STEPS: "adam._multi_tensor_adam sgd._multi_tensor_sgd"},
).values()
library_impl = Patch(
    "torch.library.Library.impl",
    why='Libraries implement operators for "XLA", which is PyTorch\'s key of another backend of our name.',
    until="The name of PrivateUse1 is a name of its key.",
    test=_TORCH_PATCHES + "::test_an_implementation_for_xla_is_called",
)
default_dtype = each(
    "torch._C",
    why="A recorded call may depend on the default dtype, and reading it at every call would cost more.",
    until="PyTorch tells listeners of a change of the default dtype.",
    tests={
        _TORCH_PATCHES + "::test_a_change_of_the_default_dtype_is_noted": (
            "_set_default_dtype _set_default_tensor_type"
        ),
    },
)
accelerator = each(
    "torch._C",
    why="PyTorch takes a backend in Python for the accelerator from its import on, and asks hooks in C++.",
    until="A backend in Python has accelerator hooks, and is the accelerator from its first use on.",
    tests={
        _TORCH_ACCELERATOR + "::test_without_another_accelerator_there_is_none": (
            "_accelerator_getAccelerator _accelerator_getDeviceIndex"
        ),
        _TORCH_ACCELERATOR + "::test_another_accelerator_answers_for_itself": (
            "_accelerator_setDeviceIndex _accelerator_synchronizeDevice _accelerator_getStream"
        ),
        _TORCH_ACCELERATOR + "::test_a_question_in_cpp_goes_to_the_other_accelerator": (
            "_accelerator_exchangeDevice _accelerator_maybeExchangeDevice _accelerator_setStream "
            "_accelerator_isAllocatorInitialized _accelerator_emptyCache _accelerator_getDeviceStats "
            "_accelerator_getMemoryInfo _accelerator_resetPeakStats _accelerator_resetAccumulatedStats "
            "_accelerator_hooks_get_current_device _accelerator_hooks_set_current_device "
            "_accelerator_hooks_exchange_device _accelerator_hooks_maybe_exchange_device"
        ),
        _DEVICE_HOOKS + "::test_a_size_that_depends_on_data_ends_no_process_while_a_graph_is_traced": (
            "_accelerator_getDeviceCapability"
        ),
        _TORCH_ACCELERATOR + "::test_the_hooks_answer_for_xla_in_use": "_accelerator_hooks_device_count",
    },
)
empty_host_cache = Patch(
    "torch._C._accelerator_emptyHostCache",
    since="2.12",
    why="PyTorch calls the allocator of pinned memory where the backend has none: the process would crash.",
    until="PyTorch looks whether there is an allocator.",
    test="api/test_device_interface.py::test_the_caches_of_the_accelerator_can_be_emptied",
)
accelerator_graph = Patch(
    "torch.accelerator.Graph.__new__",
    since="2.12",
    why="PyTorch asks a factory of graphs in C++.",
    until="A backend in Python can give its class of graphs.",
    test="engine/dispatch/register/test_graphs.py::test_a_graph_of_the_accelerator",
)
accelerator_or_host, data_parallel_type = each(
    "torch",
    why="Process groups, FSDP and `DataParallel` ask for the accelerator, also in programs that never use `xla`.",
    until="A backend in Python is the accelerator from its first use on.",
    tests={
        _TORCH_ACCELERATOR + "::test_without_another_accelerator_there_is_none": "_C._get_accelerator",
        "api/test_unused.py::test_data_parallel_calls_a_module_as_it_is": (
            "nn.parallel.data_parallel._get_available_device_type"
        ),
    },
).values()
is_to_be_initialised = Patch(
    "torch._subclasses.fake_tensor._is_privateuse1_backend_available",
    since="2.12",
    why="`FakeTensorMode` would start a client for programs that never use `xla`.",
    until="A backend in Python can say that it is not in use.",
    test=_TORCH_ACCELERATOR + "::test_a_fake_tensor_of_a_device_that_is_not_there_is_made",
)
device_hint = Patch(
    "torch._meta_registrations.device_hint",
    why="Meta kernels describe CUDA's results where they differ from the CPU's.",
    until="A backend can say whose results its own are like.",
    test=_TORCH + "::test_meta_kernels_describe_the_cpu_where_they_are_asked_to_and_nested",
)
hooks_of_nodes = Patch(
    "torch.autograd.function._HookMixin._register_hook",
    why="The hooks of autograd nodes cannot be read, but all registrations go through this function.",
    until="The hooks of a node can be read.",
    test=_AUTOGRAD_OBSERVERS + "::test_hooks_of_nodes_are_counted_and_work",
)
observed_attributes = each(
    "torch.Tensor",
    why="A replay does not compare these attributes of a tensor. A listener that is registered is told of each read.",
    until="PyTorch tells a `TorchFunctionMode` of reads of these attributes.",
    tests={
        _AUTOGRAD_OBSERVERS + "::test_who_reads_what_is_not_compared_is_told_of_with_the_frame": (
            "_version _base _cdata"
        ),
    },
)
enter_dual_level, exit_dual_level = each(
    "torch.autograd.forward_ad",
    why="Composite operators with a rule have no forward-mode derivative: they are decomposed while one is computed.",
    until="A composite operator may have a kernel and keep its derivatives.",
    tests={
        "engine/dispatch/ops/test_whole_composites.py"
        "::test_a_linear_layer_is_composed_while_its_tangent_is_computed_and_whole_afterwards": (
            "enter_dual_level exit_dual_level"
        ),
    },
).values()
compile = Patch(
    "torch.compile",
    why="To prepare Dynamo for us takes seconds: its first call does.",
    until="Dynamo calls a backend when it first meets one of its tensors.",
    test="engine/compiled/dynamo/test_install.py::test_compile_keeps_its_signature_and_is_prepared_once",
)
call_inductor = Patch(
    "torch._TorchCompileInductorWrapper.__call__",
    why="`torch.compile(model)` means Inductor, which raises `KeyError: 'xla'` for a graph on `xla`.",
    until="A device can have a default backend of its own.",
    test="engine/compiled/dynamo/test_default_backend.py::test_a_function_on_xla_is_compiled_by_openxla",
)
precompiled = Patch(
    "torch._precompile.PrecompiledModule._compile",
    since="2.14",
    why="`torch.compiler.precompile` means Inductor, which raises `KeyError: 'xla'` for a function on `xla`.",
    until="A device can have a default backend of its own.",
    test="engine/compiled/dynamo/test_install.py::test_a_precompiled_function_keeps_its_graph",
)
saved_tensor_guard = Patch(
    "torch._dynamo.guards.GuardBuilder.AUTOGRAD_SAVED_TENSORS_HOOKS",
    why="It adds a guard in Python to each graph, and C++ drops what that raises, so an interrupt would be lost.",
    until="The guard is in C++, or C++ passes on what a guard raises.",
    test="engine/compat/names/test_torch_dynamo_guards.py::test_an_interrupt_while_guards_are_checked_is_raised",
)
wrap_tensor = Patch(
    "torch._dynamo.variables.builder.VariableBuilder.wrap_tensor",
    why="Dynamo guards the parts of a `DTensor`, and would guard nothing of one that shows memory of its own.",
    until="Dynamo asks a subclass what to guard.",
    test=_DISTRIBUTED_TENSORS,
)
wrap_value = Patch(
    "torch._dynamo.variables.builder.VariableBuilder._wrap",
    why="Dynamo leaves a draw with a generator to Python, but would trace one with an object of a subclass, and raise.",
    until="Dynamo treats a subclass of `torch.Generator` as it treats the class.",
    test="engine/compiled/dynamo/test_registration.py::test_a_draw_with_a_generator_is_left_to_python",
)
result_as_constant = Patch(
    "torch._dynamo.variables.functions.invoke_and_store_as_constant",
    why="Dynamo guards too little of functions that are arguments of one whose result is constant.",
    until="Dynamo guards the code and the closure of such arguments.",
    test="engine/interop/test_jax_functions.py::test_functions_that_one_factory_made_are_two_to_a_graph",
)
wrap_for_grad, wrap_for_vmap = each(
    "torch._functorch",
    why="In the body of a loop, transforms of `torch.func` must wrap the replacement of a captured tensor.",
    until="A mode sees the arguments of a transform.",
    tests={
        "engine/compiled/loops/test_nested_loops.py::test_a_transform_is_given_the_substitute": (
            "eager_transforms._wrap_tensor_for_grad vmap._add_batch_dim"
        ),
    },
).values()
mesh_init, mesh_group, mesh_local_rank, mesh_rank = each(
    "torch.distributed.device_mesh",
    why=(
        'A mesh of "xla" devices in one process has no process groups, and the process has several places in '
        "it: PyTorch would make groups, and knows a process by one rank."
    ),
    until="`DeviceMesh` knows meshes of several devices in one process.",
    tests={_DISTRIBUTED_TENSORS: "DeviceMesh.__init__ DeviceMesh.get_group DeviceMesh.get_local_rank get_rank"},
).values()
dtensor_constructor, from_local = each(
    "torch.distributed.tensor",
    why="`torch.distributed.tensor.zeros` and the like make parts, where XLA divides the whole.",
    until="A mesh can make the tensors that are divided over it.",
    tests={_DISTRIBUTED_TENSORS: "_api._dtensor_init_helper DTensor.from_local"},
).values()
move_states = Patch(
    "torch.distributed.fsdp._fully_shard._fsdp_init._move_states_to_device",
    why="`fully_shard` moves parameters by `tensor.data = ...`, which PyTorch refuses between kinds of memory.",
    until="`fully_shard` moves modules by `Module.to`.",
    test="engine/distributed/test_parallel_plans.py::test_a_model_on_the_host_moves_when_it_is_sharded",
)
region_of_draws = Patch(
    "torch.distributed.tensor._random.OffsetBasedRNGTracker._distribute_region",
    why="Parts of distributed tensors draw from where CUDA counts in its random state.",
    until="A backend can give its tracker of random states.",
    test=_PROCESS_GROUP + "::test_parts_of_distributed_tensors_are_drawn_apart",
)
total_norm = Patch(
    "torch.nn.utils.clip_grad._get_total_norm",
    "torch.nn.utils.get_total_norm",
    why="The norm of gradients that are divided among processes is the norm of all shards.",
    until="PyTorch asks a subclass of `Tensor` for its norm there.",
    test="engine/distributed/fsdp/test_fsdp_unit.py::test_a_norm_of_gradients_is_that_of_all_parts",
)
reducer, hook_of_reducer, builtin_hook_of_reducer = each(
    "torch.distributed",
    why="`DistributedDataParallel` reduces gradients in C++, not on `xla`, and gives hooks to its own reducer only.",
    until="A process group can bring its reducer.",
    tests={
        _DDP_REDUCER + "::test_parameters_that_nobody_used_keep_what_they_have": "Reducer",
        _DDP_REDUCER + "::test_a_hook_gets_the_gradients_of_all_parameters": "_register_comm_hook",
        _DDP_REDUCER + "::test_pytorchs_built_in_hooks_reduce": "_register_builtin_comm_hook",
    },
).values()
device_of_objects = Patch(
    "torch.distributed.distributed_c10d._get_object_coll_device",
    why="Objects pass as bytes in the memory of the host.",
    until="A backend can name the device that objects pass through.",
    test=_PROCESS_GROUP + "::test_parts_of_distributed_tensors_are_drawn_apart",
)
batch_isend_irecv = Patch(
    "torch.distributed.distributed_c10d.batch_isend_irecv",
    "torch.distributed.batch_isend_irecv",
    why="Sends and receives of a batch belong together, which PyTorch says only to process groups in C++.",
    until="PyTorch calls `_start_coalescing` of process groups in Python.",
    test=_PROCESS_GROUP + "::test_objects_groups_and_messages_arrive",
)
profiler = each(
    "torch.autograd.profiler.profile",
    why="PyTorch's profiler takes the events of a device from libraries in C++ only.",
    until="A backend in Python can give the profiler its events.",
    tests={
        _TORCH_PROFILER + "::test_the_device_has_events_with_times": "_start_trace __exit__ _parse_kineto_results",
        _TORCH_PROFILER + "::test_modules_and_lines_are_in_the_trace": "export_chrome_trace",
        _TORCH_PROFILER + "::test_the_older_profiler_has_the_lane_too": "config",
    },
)
memory_timeline = Patch(
    "torch.profiler._KinetoProfile.export_memory_timeline",
    why="PyTorch's profiler hears of allocations in C++ only: it would write a file without any, or fail at them.",
    until="A backend in Python can tell the profiler of its allocations.",
    test=_TORCH_PROFILER + "::test_a_memory_timeline_of_xla_is_refused",
)
module_context = Patch(
    "jax._src.interpreters.mlir.make_ir_context",
    why="JAX makes a context for each module that it lowers, which costs as much as a small program.",
    until="JAX lets a program reuse a context.",
    test="engine/compat/patches/test_mlir_contexts.py::test_modules_of_such_blocks_share_one",
)
