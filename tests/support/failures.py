"""Write the failures of a run to a file, for `tools/retry.py`: `pytest --failures=FILE`."""

import json
from pathlib import Path

import pytest


class FailuresFile:
    """Collect the first report of each failed test and write all of them when the run ends.

    The file holds pytest's exit status and, for each failed test, its id and the text of the failure.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        path.unlink(missing_ok=True)  # a run that is killed must not leave the file of an earlier one

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.texts.setdefault(report.nodeid, report.longreprtext)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        failures = [{"test": test, "text": text} for test, text in self.texts.items()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"exit_status": int(exitstatus), "failures": failures}, indent=1))


def configure(config: pytest.Config) -> None:
    """Register the plugin in the process that collects the reports: the only one, or the one that starts workers."""
    path = config.getoption("--failures")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresFile(Path(path)))
