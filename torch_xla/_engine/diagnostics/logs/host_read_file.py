"""`XLA_FNTRACKER_FILE`: append each operator that brings a value to the host to a file."""

from ... import config
from ...metrics import events
from .debug_log import reported_read

_file = ""


def _hear(event: object) -> None:
    read = reported_read(event, config.debug_max_frames())
    if read is not None:
        with open(_file, "a") as file:
            file.write(read.line() + "\n")


def apply_settings() -> None:
    """Listen if the settings name a file."""
    global _file
    _file = config.tracker_file()
    events.listen_if(bool(_file), _hear)
