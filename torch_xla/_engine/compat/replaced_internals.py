"""Every change of ours that replaces no attribute: memory of C++ and C, lists, and kernels.

Why, until when, and the test that fails without it, as in `patch_list`, by the function of `compat/` that makes it.
Where the release does not have what such a function expects, it refuses the release or leaves all as it is.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Replaced:
    """A change that replaces no attribute, by the function of `compat/` that makes it."""

    function: str
    what: str
    why: str
    until: str
    test: str


REPLACED = [
    Replaced(
        "abi.device_guard.answer_for_device_count",
        what="the method `deviceCount` of our device guard in C++",
        why="The guard of a backend in Python reports one device: nothing on `xla:1` could be differentiated.",
        until="A guard in Python can answer for several ordinals.",
        test="api/test_devices.py::test_several_devices_in_one_process",
    ),
    Replaced(
        "abi.device_guard.answer_for_current_device",
        what="the methods `getDevice` and `exchangeDevice` of our device guard",
        why='The guard reports ordinal 0: `.to("xla")` would ignore the ordinal that a thread has chosen.',
        until="A guard in Python can answer for several ordinals.",
        test="api/test_devices.py::test_several_devices_in_one_process",
    ),
    Replaced(
        "abi.device_guard.let_exceptions_pass",
        what="the other methods of our device guard that C++ calls",
        why="C++ calls them where nothing may be raised: an interrupt in a method written in Python ends the process.",
        until="PyTorch lets exceptions of a guard in Python pass, or does not call it for a device with one stream.",
        test="engine/compat/abi/test_device_guard.py::test_a_library_without_the_method_leaves_the_guard_as_it_is",
    ),
    Replaced(
        "abi.device_guard.stand_for_unnamed",
        what="the entry of \"xla\" in PyTorch's table of device guards, beside a GPU of PyTorch's",
        why='`tensor.to("xla")` asks that guard before PrivateUse1 has the name.',
        until="A backend in Python can have its name without being the accelerator.",
        test="engine/dispatch/register/test_deferred_name.py::test_the_first_use_takes_the_name",
    ),
    Replaced(
        "abi.pinned_memory.answer_with_memory_of_the_host",
        what="the method `getPinnedMemoryAllocator` of our hooks in C++",
        why="`torch.empty(…, pin_memory=True)` asks the accelerator, and hooks in Python cannot answer.",
        until="Hooks in Python can give an allocator.",
        test="engine/compat/abi/test_pinned_memory.py::test_pinned_memory_is_memory_of_the_host",
    ),
    Replaced(
        "abi.class_calls.answer_calls_of",
        what="the class of the classes `torch.Generator`, `torch.Event` and `torch.Stream`",
        why="PyTorch makes these for no backend in Python, and annotations and TorchScript know the classes.",
        until="A backend in Python can make its generators, events and streams.",
        test="engine/compat/names/test_torch.py::test_generators_stay_what_they_are_for_annotations_and_tests_of_class",
    ),
    Replaced(
        "abi.generator_device.belong_to",
        what="the device of the C++ object of our generators",
        why="They are of the CPU's class: draws on the CPU would take them, and a state that `get_state` lacks.",
        until="A backend in Python can make its generators.",
        test="engine/compat/abi/test_generator_device.py::test_draws_of_the_cpu_refuse_a_generator_of_the_device",
    ),
    Replaced(
        "abi.view_kernels.take_meta_kernels",
        what="the entries of PrivateUse1 in the tables of kernels of view operators",
        why="A view costs 1 µs by a kernel of C++ and 4 to 6 µs by one in Python, a tenth of a recorded step.",
        until="A backend in Python can register the kernels of another key.",
        test="engine/compat/abi/test_view_kernels.py::test_no_python_runs_for_a_view",
    ),
    Replaced(
        "patches.garbage_callback.keep_interrupts",
        what="JAX's entry in `gc.callbacks`",
        why="Python drops an exception of a callback written in Python, so an interrupt would be lost.",
        until="JAX's callback is a C function.",
        test="engine/compat/patches/test_garbage_callback.py::test_an_interrupt_during_a_collection_is_raised_behind_it",
    ),
    Replaced(
        "names.torch_refs.call_references_without_dynamo",
        what="where PyTorch's reference functions keep the function that Dynamo leaves alone",
        why="Each is kept from Dynamo by importing Dynamo: the first operation of a process would take 0.8 s.",
        until="`torch._compile._disable_dynamo` imports nothing while Dynamo is not there.",
        test="engine/compat/names/test_torch_refs.py::test_operations_import_no_dynamo",
    ),
    Replaced(
        "names.torch.higher_order_operators_ignore_autocast",
        what="the list of higher-order operators that run alike under every device's autocast",
        why='Flex attention, `cond` and `while_loop` are refused under `torch.autocast("xla")`.',
        until="PyTorch's list has the key `AutocastPrivateUse1`.",
        test="engine/dispatch/register/test_autocast.py::test_operators_that_take_functions_do_as_on_the_cpu",
    ),
    Replaced(
        "names.torch.replace_batching_rule",
        what="the rule by which `torch.vmap` batches `_linalg_solve_ex`, which other devices go on to get",
        why="It aligns the batch with another one where the operands have unlike numbers of dimensions.",
        until="`findings/vmap_of_solve_misaligns_batches.sh` fails.",
        test="engine/dispatch/ops/test_linear_algebra.py::test_batches_of_systems_are_aligned_under_vmap",
    ),
]
