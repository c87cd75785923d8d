"""Where Python, PyTorch and NumPy keep functions without side effects: source files, and functions by name.

A file means all functions in it, a folder all its files. `compiled/replay/pure_allowlist.py` reads these tables.
"""

# Python files whose functions depend only on their arguments and on the C functions that they call.
PYTHON_FILES = frozenset((
    "contextlib", "functools", "abc", "_collections_abc", "collections/__init__", "enum", "types", "typing",
    "dataclasses", "operator", "numbers", "copy", "copyreg", "bisect", "heapq", "inspect", "_weakrefset",
    "annotationlib",
))  # fmt: skip
# Functions that read the environment, whose contents `guard_builder` guards.
OF_THE_ENVIRONMENT = frozenset((
    "getenv", "_Environ.__getitem__", "_Environ.__iter__", "_Environ.__len__", "_createenviron.<locals>.encode",
    "_createenviron.<locals>.decode", "_create_environ_mapping.<locals>.encode",  # the latter from Python 3.14 on
    "_create_environ_mapping.<locals>.decode",
))  # fmt: skip
# Functions that run when an imported module is imported again.
IMPORTS = frozenset(("_handle_fromlist", "parent", "__getattr__"))
TORCH_FILES = (
    "nn/", "optim/", "autograd/", "functional.py", "_tensor.py", "amp/", "utils/_contextlib.py", "utils/checkpoint.py",
    "utils/_pytree.py", "utils/_foreach_utils.py", "utils/hooks.py", "_ops.py", "overrides.py", "_jit_internal.py",
    "distributions/", "_dynamo/", "_functorch/", "_higher_order_ops/", "_VF.py", "compiler/__init__.py", "_lobpcg.py",
    "_linalg_utils.py", "_lowrank.py", "utils/_device.py", "func/", "_compile.py", "_prims_common/", "masked/",
    "fx/", "utils/weak.py", "utils/_python_dispatch.py", "_subclasses/",
)  # fmt: skip
NOT_TORCH_FILES = ("nn/parallel/", "autograd/profiler")
# Names for a profile. A replay has none inside, as a graph of CUDA has none.
RANGES = frozenset(f"record_function.{name}" for name in ("__init__", "__enter__", "__exit__", "__call__"))
# Dynamo's bookkeeping of modules that are created and deleted, at any point of a program; it compiles no code.
NOTES_OF_DYNAMO = (
    ("_dynamo/mutation_guard.py", ""),
    ("_dynamo/utils.py", "ExactWeakKeyDictionary.__setitem__.<locals>.<lambda>"),
)
TORCH_FUNCTIONS = frozenset((
    "is_tensor", "is_storage", "typename", "get_default_device", "sym_int", "sym_float", "sym_max",
    "sym_min", "sym_not",
    "is_available", "is_initialized", "is_tracing", "is_scripting", "is_fx_tracing", "is_in_onnx_export", "__getattr__",
    "is_dynamo_compiling", "is_compiling", "are_deterministic_algorithms_enabled", "compile", "is_exporting",
    "is_current_stream_capturing",
))  # fmt: skip
NUMPY_FILES = ("_core/", "core/", "lib/_shape_base", "lib/_function_base", "lib/_twodim", "lib/_index", "linalg/")

# Functions written in C.
TENSOR_METHODS = frozenset((
    "size", "stride", "dim", "numel", "ndimension", "nelement", "element_size", "is_contiguous", "type",
    "is_floating_point", "is_complex", "is_signed", "get_device", "storage_offset", "requires_grad_", "cpu", "tolist",
    "numpy", "new_tensor", "new", "byte", "float", "half", "double", "int", "long", "short", "bool", "bfloat16", "char",
    "contiguous", "is_inference", "type_as", "has_names", "__getitem__", "__setitem__", "untyped_storage",
    "as_subclass",
))  # fmt: skip
TORCH_CALLS = frozenset((
    "is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "get_autocast_dtype", "get_default_dtype",
    "is_autocast_cache_enabled", "is_anomaly_enabled", "is_complex", "is_floating_point", "is_nonzero", "numel",
    "result_type", "can_cast", "promote_types", "tensor", "as_tensor", "from_numpy", "asarray",
    "is_autocast_cpu_enabled", "get_current_stream",
    "get_autocast_gpu_dtype", "_is_tracing", "_get_tracing_state", "_are_functorch_transforms_active",
))  # fmt: skip
