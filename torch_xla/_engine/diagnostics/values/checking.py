"""Values that an operator cannot take, as indices out of range: looked for while somebody asks for it."""

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
    """Checks the values of what is called in the block; its end waits for what they are."""
    value_checks.ask()
    try:
        yield
    finally:
        value_checks.ask_no_more()
    for device in existing_devices():
        sync_device(device)
    executor.wait()


def apply_settings() -> None:
    """Starts and ends the same for the whole program, as XLA_CHECK_VALUES says."""
    global _is_set
    wanted = config.check_values()
    if wanted != _is_set:
        _is_set = wanted
        (value_checks.ask if wanted else value_checks.ask_no_more)()
