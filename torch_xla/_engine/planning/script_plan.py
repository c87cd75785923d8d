"""Plan a whole script, which reads values and does not know that it is planned."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ..metrics import events
from ..metrics.events import StepEnd
from ..runtime import abstract_devices, topologies
from ..runtime.topologies import Topology
from ..step.sync import sync_device
from ..tensor.device import existing_devices
from .planner import Planning, planning
from .step_plan import StepPlan, axes_with, planned


class Enough(BaseException):
    """Ends a script that has ended its steps; no `except Exception` of the script catches it."""


@dataclass(frozen=True, slots=True)
class ScriptPlan:
    """The plan of a script, and how many values it read that were not computed."""

    plan: StepPlan
    reads: int

    def __str__(self) -> str:
        text = str(self.plan)
        if not self.plan.programs:
            text += "\n  the script recorded no program: it must move its model to the device 'xla'"
        if self.reads:
            text += f"\n  {self.reads} reads of values that a plan does not compute returned zeros"
        return text


@dataclass(slots=True)
class _Steps:
    """Counts the steps of a script, and ends it after the last one.

    A step ends where it is synced and has run a program. In a script that never syncs, one ends with the update of the
    last of its optimizers.
    """

    found: Planning
    most: int
    ended: int = 0
    runs: int = 0
    updates: Counter[int] = field(default_factory=Counter)  # of each optimizer, by its id

    def note(self, event: object) -> None:
        """Count the end of a step."""
        runs = sum(program.runs for program in self.found.programs)
        if runs > self.runs:
            self.runs, self.ended = runs, self.ended + 1
        if self.ended >= self.most:
            raise Enough

    def note_update(self, optimizer: Optimizer, *_: object) -> None:
        """Count an update of an optimizer."""
        self.updates[id(optimizer)] += 1
        if not self.ended and min(self.updates.values()) >= self.most:
            for device in existing_devices():
                sync_device(device)  # while the script still holds what it has recorded
            raise Enough


def plan_of_script(
    run: Callable[[], object],
    steps: int,
    topology: str | Topology,
) -> ScriptPlan:
    """Call `run` until it has ended so many steps, and return what they need on a machine with this topology."""
    devices = topologies.devices_of(topologies.named(topology))
    with planning(devices, partial(axes_with, devices)) as found, abstract_devices.read_as_zeros() as reads:
        counting = _Steps(found, steps)
        events.listen(counting.note, closely=True, kinds=(StepEnd,))
        updates = register_optimizer_step_post_hook(counting.note_update)
        try:
            run()
        except Enough:
            pass
        except SystemExit as error:
            if error.code:
                raise
        finally:
            updates.remove()
            events.unlisten(counting.note)
    return ScriptPlan(planned(found, devices, None, topology), len(reads))
