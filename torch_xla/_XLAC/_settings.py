"""The functions of `torch_xla._XLAC` that set how programs are recorded and compiled."""

from collections.abc import Mapping

import jax
import torch

from .._engine import compiler_options, diagnostics, runtime, step
from .._engine import precision as _precision
from .._engine.compile import baked_numbers
from .._engine.compiled import eager
from .._engine.step import clear_schedules
from .._engine.tensor import value_of


class PjRtPlugin:
    """The base of the plugins that `_register_pjrt_plugin` takes: see `torch_xla.experimental.plugins.DevicePlugin`."""


def _register_pjrt_plugin(name: str, plugin: object) -> None:
    """Register a PJRT plugin under a name that `PJRT_DEVICE` can choose."""
    runtime.register_plugin(name, plugin)


def _set_use_eager_mode(use_eager_mode: bool) -> None:
    """Run each operation when it is called, or record operations; see `torch_xla.experimental.eager_mode`."""
    eager.switch(bool(use_eager_mode))


def _get_use_eager_mode() -> bool:
    """Return whether each operation runs when it is called."""
    return eager.is_on()


def _set_current_graph_name(current_graph_name: str) -> None:
    """Name the graphs of `PT_XLA_DEBUG` that are recorded from now on outside of a named `torch_xla.compile`."""
    diagnostics.name_graphs(current_graph_name)


def _get_current_graph_name() -> str:
    """Return the name that `_set_current_graph_name` gave."""
    return diagnostics.current_graph_name()


def _set_custom_compile_options(options: Mapping[str, bool | int | float | str]) -> None:
    """Set XLA's options for the programs compiled from now on; see `torch_xla.set_custom_compile_options`."""
    compiler_options.choose(options)


def _set_xla_all_numbers_special_scalars(all_numbers_special_scalars: bool) -> None:
    """Make every Python number a constant of the program, which is then compiled for each of its values.

    Without it, a number becomes an argument once it changes. Programs in memory are forgotten.
    """
    if bool(all_numbers_special_scalars) != baked_numbers.are_asked():
        baked_numbers.bake_all(bool(all_numbers_special_scalars))
        clear_schedules()


def _get_xla_all_numbers_special_scalars() -> bool:
    """Return whether every Python number is a constant."""
    return baked_numbers.are_asked()


def _set_xla_handle_special_scalars(handle_special_scalars: bool) -> None:
    """Do nothing: 0 and 1 are numbers like others."""


def _get_xla_handle_special_scalars() -> bool:
    """Return False: 0 and 1 are numbers like others."""
    return False


def _set_xla_enable_device_data_cache(enable_device_data_cache: bool) -> None:
    """Do nothing: Python numbers are constants or arguments of a program, and never data to be found again."""


def _get_xla_enable_device_data_cache() -> bool:
    """Return False: there is no cache of data."""
    return False


def _set_xla_custom_op_name_prefix(tensor: torch.Tensor, op_name_prefix: str, max_call_stack_depth: int = 0) -> bool:
    """Name the recorded operation that makes `tensor`: the name precedes the operator's in the program's metadata.

    Return False if the tensor is computed already. Metadata is no part of a program's key: a program that is in memory
    keeps the names of the time when it was compiled. `max_call_stack_depth` is not used: with `XLA_HLO_DEBUG=1` the
    metadata has your lines.

    >>> import torch, torch_xla
    >>> x = torch.ones(2).to("xla")
    >>> y = x + x
    >>> torch_xla._XLAC._set_xla_custom_op_name_prefix(y, "layer1/add", 0)
    True
    >>> b"layer1/add/aten::add" in torch_xla._XLAC._get_xla_tensors_hlo_proto([y])
    True
    """
    return step.name_operation(value_of(step.on_xla(tensor)), op_name_prefix)


def _xla_register_custom_call_target(fn_name: str, function_ptr: object, platform: str) -> None:
    """Register a C function, as a capsule, as the target `fn_name` of custom calls on a platform of JAX's."""
    jax.ffi.register_ffi_target(fn_name, function_ptr, platform=platform, api_version=0)


def _xla_set_mat_mul_precision(precision: str) -> None:
    """Set how exactly products of float32 are computed: "default", "high" or "highest"."""
    _precision.choose(precision)


def _xla_get_mat_mul_precision() -> str:
    """Return how exactly products of float32 are computed now: as set, or as is the platform's own."""
    return _precision.on_platform(runtime.selected_device_type().lower())


# Names with an underscore, too: `from ... import *` takes what is listed here.
__all__ = [name for name, value in list(globals().items()) if getattr(value, "__module__", "") == __name__]
