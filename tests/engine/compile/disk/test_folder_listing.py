"""The files of a program are found, with the files that this process adds."""

import os
from pathlib import Path

from torch_xla._engine.compile.disk.folder_listing import Listing


def test_the_files_of_a_program_are_found_and_others_are_not(tmp_path: Path) -> None:
    listing = Listing()
    assert listing.of(tmp_path / "missing", "ab", ".xla") == []
    for name in ("ab-1.xla", "ab-1.xla.numbers", "ab-2.xla", "abc-1.xla", "aa-1.xla"):
        (tmp_path / name).touch()
    assert listing.of(tmp_path, "ab", ".xla") == ["ab-1.xla", "ab-2.xla"]
    assert listing.is_current(tmp_path)
    (tmp_path / "ab-3.xla").touch()
    os.utime(tmp_path, ns=(1, 1))  # within the resolution of the clock, the folder may look as before
    assert not listing.is_current(tmp_path)
    assert listing.of(tmp_path, "ab", ".xla") == ["ab-1.xla", "ab-2.xla", "ab-3.xla"]
    (tmp_path / "ab-0.xla").touch()
    listing.add(tmp_path / "ab-0.xla")
    assert listing.is_current(tmp_path) and listing.of(tmp_path, "ab", ".xla")[0] == "ab-0.xla"
