"""Results that are kept between runs: a JSON file for each file of tests."""

import json
from pathlib import Path

from .runs import Ending

BAD = ("failed", "too long", "crashed")


class Results:
    """How each test of one file ended on each device and on the CPU beside this package, and which tests there are."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.json"
        self.name = name
        self.tests: list[str] = []
        self.devices: dict[str, dict[str, Ending]] = {"cpu": {}, "xla": {}, "beside": {}}
        if self.path.exists():
            self.tests, known = json.loads(self.path.read_text())
            self.devices |= known

    def keep(self) -> None:
        """Writes all of it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps([self.tests, self.devices], indent=1))
