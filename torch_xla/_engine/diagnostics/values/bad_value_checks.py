"""Check values that an operator cannot take, such as indices out of range, while that is turned on."""

from collections.abc import Iterator
from contextlib import contextmanager

from ... import config
from ...dispatch.checks import device_values
from ...step import in_flight
from ...step.sync import sync_device
from ...tensor.device import existing_devices

_is_set = False


@contextmanager
def checking() -> Iterator[None]:
    """Check the operands of operators called in the block; its end waits for the results."""
    device_values.ask()
    try:
        yield
    finally:
        device_values.ask_no_more()
    for device in existing_devices():
        sync_device(device)
    in_flight.wait()


def apply_settings() -> None:
    """Start or end checking for the whole program, as XLA_CHECK_VALUES says."""
    global _is_set
    wanted = config.check_values()
    if wanted != _is_set:
        _is_set = wanted
        (device_values.ask if wanted else device_values.ask_no_more)()
