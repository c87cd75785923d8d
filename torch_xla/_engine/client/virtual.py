"""Whether all devices stand behind one ordinal, a virtual device, as SPMD has it."""

from .. import config

_asked = False


def is_on() -> bool:
    """Whether `xla:0` means all devices of the program."""
    return _asked or config.use_spmd()


def turn_on() -> None:
    """Makes `xla:0` mean all devices from now on."""
    global _asked
    _asked = True
