"""Signals that tests send to themselves, and that a shell lets the programs in its background ignore."""

import signal


def heed_interrupts() -> None:
    """Let SIGINT raise `KeyboardInterrupt` and SIGQUIT end the process, if the parent of the process ignores them."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
