"""Which tests one worker runs, where several processes run them: `pytest --dist loadfile`."""

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling


class Shared(LoadFileScheduling):
    """A file's tests go to one worker, and so do all files of a folder whose tests share fleets of processes.

    Each worker would start these again, which takes longer than most of what is asked of them.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _unit(self.config.rootpath / file, file)


@cache
def _unit(path: Path, file: str) -> str:
    return file.rpartition("/")[0] if "fleet_of(" in path.read_text() else file
