"""Check values that an operator cannot take, such as indices out of range, while that is turned on."""

from collections.abc import Iterator
from contextlib import contextmanager

from ... import config
from ...dispatch import value_checks
from ...execute import executor
from ...record.device import existing_devices
from ...record.sync import sync_device

_is_set = False


@contextmanager
def checking() -> Iterator[None]:
    """Check the operands of operators called in the block; its end waits for the results."""
    value_checks.ask()
    try:
        yield
    finally:
        value_checks.ask_no_more()
    for device in existing_devices():
        sync_device(device)
    executor.wait()


def apply_settings() -> None:
    """Start or end checking for the whole program, as XLA_CHECK_VALUES says."""
    global _is_set
    wanted = config.check_values()
    if wanted != _is_set:
        _is_set = wanted
        (value_checks.ask if wanted else value_checks.ask_no_more)()
