"""Enter `xla` in lists of device types that other libraries keep, when they are imported.

A library without a list needs no entry; docs/frameworks.md names what is entered.
"""

import copy
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..compat import import_hooks
from .continuous_batching import note_device, pad_batches, prepare_on_host, size_cache


def _name_backend(module: ModuleType) -> None:
    """Tell Transformers which backend of `torch.distributed` serves `xla`."""
    backends = getattr(module, "DISTRIBUTED_BACKEND_MAP", None)
    if isinstance(backends, dict):
        backends.setdefault("xla", "xla")


def _compile_generation(module: ModuleType) -> None:
    """Let `generate` compile on `xla` if a caller passes it a `CompileConfig`, as it does on CUDA."""
    mixin = getattr(module, "GenerationMixin", None)
    if (asked := getattr(mixin, "_valid_auto_compile_criteria", None)) is None:
        return

    # The list of devices is inside the function; a flag of the configuration goes around it.
    @functools.wraps(asked)
    def criteria(model: Any, model_kwargs: object, generation_config: Any) -> object:
        config = generation_config.compile_config
        if config is not None and model.device.type == "xla":
            generation_config.compile_config = config = copy.copy(config)
            config._compile_all_devices = True
        return asked(model, model_kwargs, generation_config)

    mixin._valid_auto_compile_criteria = criteria  # type: ignore[union-attr]


# By the module that has the list.
_ENTRIES: dict[str, Callable[[ModuleType], None]] = {
    "transformers.distributed.utils": _name_backend,
    "transformers.generation.utils": _compile_generation,
    "transformers.generation.continuous_batching.initialization": note_device,
    "transformers.generation.continuous_batching.cache": size_cache,
    "transformers.generation.continuous_batching.input_outputs": prepare_on_host,
    "transformers.generation.continuous_batching.model_runner": pad_batches,
}


def complete() -> None:
    """Complete the lists of libraries that are imported, now or later."""
    for name, enter in _ENTRIES.items():
        import_hooks.when_imported(name, enter)
