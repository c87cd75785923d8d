"""Standard error: a line for each step (`XLA_EMIT_STEPLOG`), stacks after a crash (`XLA_DUMP_FATAL_STACK`)."""

import faulthandler
import sys

from ... import config
from ...metrics import events, user_lines
from ...metrics.events import StepEnd

_dumps_stack = False


def _hear(event: object) -> None:
    if isinstance(event, StepEnd):
        where = f", ended by {user_lines.text(event.frames[0])}"
        text = f"torch_xla.sync: step {event.number} on xla:{event.device}, {event.seconds * 1e3:.3f} ms{where}\n"
        sys.stderr.write(text)
        sys.stderr.flush()  # the last line before a program hangs is why one asks for these


def apply_settings() -> None:
    """Turn on what the settings ask for."""
    global _dumps_stack
    events.listen_if(config.emit_step_log(), _hear)
    if config.dump_fatal_stack() and not _dumps_stack:
        _dumps_stack = True
        if not faulthandler.is_enabled():
            faulthandler.enable(all_threads=True)
