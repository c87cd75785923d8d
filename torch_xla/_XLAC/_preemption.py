"""The functions of `torch_xla._XLAC` about preemption."""

from .._engine import processes


def _activate_preemption_sync_manager() -> None:
    """Handle SIGTERM as the announcement that the machine will end: `_sync_point_reached` returns true after it."""
    processes.activate_preemption()


def _deactivate_preemption_sync_manager() -> None:
    """Restore the handler of SIGTERM."""
    processes.deactivate_preemption()


def _sync_point_reached(step: int) -> bool:
    """Return whether a machine of the program will end, and all processes agreed to save at this or an earlier step.

    Every process calls this with the same steps. Raises `RuntimeError` before `_activate_preemption_sync_manager()`.

    >>> import torch_xla
    >>> torch_xla._XLAC._activate_preemption_sync_manager()
    >>> torch_xla._XLAC._sync_point_reached(0)
    False
    >>> torch_xla._XLAC._deactivate_preemption_sync_manager()
    """
    return processes.is_preemption_reached(step)
