"""SIGTERM means that the machine will end, and all processes agree on a step at which they save."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jax.experimental import multihost_utils

from tests.support import fleet
from torch_xla import _XLAC
from torch_xla._engine.processes import identity, preemption

ROOT = Path(__file__).parents[3]

# A handler of the user's is in force again after the end, and without one the signal ends the process as ever.
ALONE = """
import os, signal
from tests.engine.processes.test_preemption import steps_until_the_end
from torch_xla._engine.processes import preemption
signal.signal(signal.SIGTERM, lambda number, frame: print("handled"))
assert steps_until_the_end(10) > 0
os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
preemption.activate()
preemption.deactivate()
print("ends", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.fixture(scope="module", autouse=True)
def end_of_fleets() -> Iterator[None]:
    with fleet.fleets():
        yield


def steps_until_the_end(stride: int) -> int:
    """At which step the processes of this program agreed to end; process 0 is told so before the third."""
    _XLAC._activate_preemption_sync_manager()
    _XLAC._activate_preemption_sync_manager()  # which does nothing
    try:
        for number in itertools.count():
            step = number * stride
            if number == 2 and identity.process_index() == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            if _XLAC._sync_point_reached(step):
                # Asked again it says the same, and so does every later step.
                assert number >= 2 and _XLAC._sync_point_reached(step) and _XLAC._sync_point_reached(step + stride)
                return step
            time.sleep(0.001)  # steps so short that most ask while the processes agree
    finally:
        _XLAC._deactivate_preemption_sync_manager()
    raise AssertionError


def test_a_process_that_is_alone_ends_at_a_step_of_its_own() -> None:
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.stdout == "handled\nends\n" and done.returncode == -signal.SIGTERM, done.stderr


@pytest.mark.slow
def test_all_processes_end_at_one_step() -> None:
    first, second = fleet.fleet_of(2).run(steps_until_the_end, 7)
    assert first == second > 0


def test_jax_knows_of_it_too() -> None:
    preemption.activate()
    try:
        assert multihost_utils.reached_preemption_sync_point(1) is False
    finally:
        preemption.deactivate()
        preemption.deactivate()


def test_a_step_is_asked_for_where_nobody_listens() -> None:
    with pytest.raises(RuntimeError, match=r"call torch_xla._XLAC._activate_preemption_sync_manager\(\) first"):
        _XLAC._sync_point_reached(0)
