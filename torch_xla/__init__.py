"""The `xla` device for PyTorch: operations are recorded, compiled by XLA and run on CPU, GPU or TPU.

    import torch
    import torch_xla

    x = torch.randn(3, 3, device="xla")  # recorded
    y = x @ x + 1                        # recorded
    torch_xla.sync()                     # compiled, or found compiled, and started
    print(y)                             # waits for the device

Importing this package makes the device exist and does nothing else: it starts no client and takes no memory. If it
cannot work here, it raises `ImportError`.
"""

import gc as _gc
import sys as _sys
from collections.abc import Callable as _Callable
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version as _release
from typing import Any as _Any

if _sys.argv[:1] == ["-m"] and "torch_xla.doctor" in _sys.orig_argv:
    # It looks at this package from outside, also where it does not work, and need not wait for what is imported below.
    from .doctor import main as _main

    _sys.exit(_main())

import torch as _torch  # noqa: E402

from . import version as version  # noqa: E402
from .version import __version__ as __version__  # noqa: E402

if hasattr(_torch, "xla") and f"{__name__}._engine" not in _sys.modules:
    raise ImportError(
        "torch_xla was imported in this process before, and its modules were taken out of `sys.modules`. PyTorch "
        "has the device of the first import and can have no second one: start Python again."
    )
# Collections while 2,000 modules are imported find next to nothing, and would take half of the time.
_collects = _gc.isenabled()
_gc.disable()
try:
    from . import _XLAC as _XLAC
    from . import amp as amp
    from . import backends as backends
    from . import runtime as runtime
    from ._engine import compiler_options as _compiler_options
    from ._engine import config as _config
    from ._engine import diagnostics as _diagnostics
    from ._engine import distributed as _distributed
    from ._engine import runtime as _runtime
    from ._engine import step as _step
    from ._engine import tensor as _tensor
    from ._engine.compat.names import torch as _private
    from ._engine.compiled import dynamo as _graphs
    from ._engine.compiled import eager as _eager
    from ._engine.dispatch import register as _backend

    # Programs reach these by their paths after nothing but `import torch_xla`.
    from .core import xla_model as _xla_model  # noqa: F401
    from .debug import metrics as _metrics  # noqa: F401
    from .debug import profiler as _profiler  # noqa: F401
    from .distributed import parallel_loader as _parallel_loader  # noqa: F401
    from .distributed import xla_backend as _xla_backend  # noqa: F401
    from .distributed import xla_multiprocessing as _xla_multiprocessing  # noqa: F401
    from .experimental.eager import compile as compile
    from .stablehlo import save_as_stablehlo as save_as_stablehlo
    from .stablehlo import save_torch_model_as_stablehlo as save_torch_model_as_stablehlo
    from .utils import utils as _utils  # noqa: F401

    _config.refuse_nonsense()
    if not _backend.is_installed():  # True only if the module is reloaded
        _backend.claim_device_name()
        _backend.register_kernels()
        _backend.apply_patches()
        _graphs.install()
        _distributed.install_device_mesh(f"{__name__}.distributed.spmd.device_meshes")
        _eager.switch(_config.eager_debug_mode())
        _diagnostics.keep_history(_config.history())
        _diagnostics.install_torch_profiler()
# Libraries that use us only if we are there catch nothing else than `ImportError`.
except ImportError:
    raise
except ValueError as error:  # of a setting
    raise ImportError(f"torch_xla {__version__} cannot start: {error} (`python -m torch_xla.doctor`)") from error
except Exception as error:  # another release of either may fail in any way
    raise ImportError(
        f"torch_xla {__version__} does not work with torch {_torch.__version__} and jax {_release('jax')}: {error}"
    ) from error
else:
    if _collects:
        _runtime.set_imported_objects_aside()
finally:
    if _collects:
        _gc.enable()

__all__ = [
    "compile",
    "device",
    "device_count",
    "devices",
    "launch",
    "manual_seed",
    "real_devices",
    "runtime",
    "set_custom_compile_options",
    "step",
    "sync",
    "version",
]


def device(index: int | None = None) -> _torch.device:
    """Return the `xla` device of this thread, or the one with ordinal `index`, which becomes this thread's.

    The device of a thread is what a bare `"xla"` means there and what `sync()` acts on; at first it is `xla:0`.
    Raises `RuntimeError` if there is no such ordinal.

    >>> import torch_xla
    >>> torch_xla.device()
    device(type='xla', index=0)
    """
    if index is not None:
        _tensor.set_current_index(_tensor.device_index_of(index))
    return _tensor.device_named().torch_device


def devices() -> list[_torch.device]:
    """Return all `xla` devices of this process, in the order of their ordinals.

    >>> import torch_xla
    >>> torch_xla.devices()[0]
    device(type='xla', index=0)
    """
    return [_torch.device("xla", index) for index in _tensor.device_ordinals()]


def real_devices() -> list[str]:
    """Return the names of the hardware behind `devices()`, such as `['CPU:0']` or `['CUDA:0', 'CUDA:1']`.

    >>> import torch_xla
    >>> len(torch_xla.real_devices()) == torch_xla.device_count()
    True
    """
    return _tensor.real_device_names()


def device_count() -> int:
    """Return the number of `xla` devices of this process. On the CPU, `CPU_NUM_DEVICES` sets it.

    >>> import torch_xla
    >>> torch_xla.device_count() >= 1
    True
    """
    return len(_runtime.local_devices())


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """End the step: compile the operations recorded on this thread's device, unless they are compiled, and start them.

    Returns as soon as the device has the work, so that the next step is recorded while this one runs; with
    `wait=True`, returns when the step has ended. Reading a tensor's value (`print`, `.item()`, `.cpu()`) needs no
    `sync`: it computes what that value needs. After the step has been started, its closures run
    (`xm.add_step_closure`).

    A step ends outside of named blocks (`torch_xla.debug.profiler.Trace`): `sync` in an open block raises
    `RuntimeError`. With `reset_scope=False` the block may be open, and lasts until its end.

    Raises `torch_xla`'s `RuntimeError`s for errors on the device, and any exception of a step closure.

    >>> import torch, torch_xla
    >>> x = torch.ones(2, 3, device="xla")
    >>> y = (x + 1).sum()
    >>> torch_xla.sync()
    >>> y.item()
    12.0
    """
    _step.end_step(wait, reset_scope)


@contextmanager
def step() -> Iterator[None]:
    """Return a context manager (or, with parentheses, a decorator) for one step: it syncs before and after the block.

    Operations recorded before the block do not become part of the step's program. If the block raises, its operations
    stay recorded.

    >>> import torch, torch_xla
    >>> with torch_xla.step():
    ...     y = torch.ones(3, device="xla") * 2
    >>> y.tolist()
    [2.0, 2.0, 2.0]
    """
    _step.end_step()
    yield
    _step.end_step()


def launch(
    fn: _Callable[..., _Any],
    args: tuple[_Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Call `fn(index, *args)` in one process for each device of this machine, and return when all processes have ended.

    Under `torchrun`, which has already started the processes, call `fn` in this process, with `LOCAL_RANK` as `index`.
    With `debug_single_process=True`, call `fn` once, in this process, with index 0. `start_method` is that of
    `torch.multiprocessing`. Raises the exceptions of `torch_xla.distributed.xla_multiprocessing.spawn`.

    >>> import torch, torch_xla
    >>> def train(index, size):
    ...     print(index, torch.ones(size, device="xla").sum().item())
    >>> torch_xla.launch(train, args=(3,), debug_single_process=True)
    0 3.0
    """
    _distributed.launch(fn, args, start_method, debug_single_process)


def manual_seed(seed: int, device: str | int | _torch.device | None = None) -> None:
    """Seed the random number generator of `device`, by default the device of this thread.

    `torch.manual_seed` seeds the CPU and every `xla` device. A seed is an input of a program, so a new seed never
    causes a compilation.

    >>> import torch, torch_xla
    >>> torch_xla.manual_seed(7)
    >>> first = torch.rand(4, device="xla")
    >>> torch_xla.manual_seed(7)
    >>> torch.equal(first, torch.rand(4, device="xla"))
    True
    """
    _tensor.set_random_state(seed, _tensor.device_index_of(device))


def set_custom_compile_options(options: dict[str, bool | int | float | str] | None) -> None:
    """Set XLA's options for the programs compiled from now on; an empty dict or `None` resets them.

    The names are those of XLA's flags without `--`. A program that was compiled with other options is compiled again
    when it is needed. For an option that XLA does not know, the next compilation raises JAX's `RuntimeError`.

    >>> import torch_xla
    >>> torch_xla.set_custom_compile_options({"xla_cpu_enable_fast_math": True})
    >>> torch_xla.set_custom_compile_options({})
    """
    _compiler_options.choose(options)


# `torch.compile` takes the device for a constant of the graph, instead of ending the graph at the question.
_private.constant_in_graphs(device)
