"""Which tests one worker runs, where several processes run them: `pytest --dist loadfile`."""

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class Shared(LoadFileScheduling):
    """Send a file's tests to one worker, and all files of a folder together whose tests share what is slow to make.

    These are fleets of processes and the parsed sources of the repository. Each worker would make them again, which
    takes longer than most tests of them.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _unit(self.config.rootpath / file, file)

    def remove_node(self, node: WorkerController) -> str | None:
        """The test in which a worker ended, if it did; what it had still to do goes to others, without that test.

        xdist would have them run it, too, and end one by one.
        """
        units = self.assigned_work.pop(node)
        left = [(unit, test) for unit in units.values() for test, done in unit.items() if not done]
        if not left:
            return None
        unit, culprit = left[0]
        unit[culprit] = True
        self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return culprit


@cache
def _unit(path: Path, file: str) -> str:
    folder = file.rpartition("/")[0]
    return folder if folder == "tests/house" or "fleet_of(" in path.read_text() else file
