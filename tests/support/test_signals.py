"""Tests run in the background of a shell as they do in front."""

import signal
import subprocess
import sys

PROGRAM = """
import os, signal
from tests.support.signals import heed_interrupts
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
heed_interrupts()
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGQUIT)
"""


def test_signals_that_the_shell_ignores_arrive() -> None:
    command = ["sh", "-c", 'trap "" INT QUIT; ulimit -c 0; exec "$@"', "sh", sys.executable, "-c", PROGRAM]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGQUIT
