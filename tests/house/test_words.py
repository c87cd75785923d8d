"""Names say what a file or a class is for, and what is unfinished is not in the code."""

import ast
import re
from collections import defaultdict

import pytest

from tests.house.source import FOLDERS, ROOT, name_of, none, python_files, tree_of

# Written apart, so that this file passes its own test.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")

NAMELESS = {"utils", "util", "common", "helpers", "helper", "misc"}
DOCUMENTED = {
    "torch_xla/utils",
    "torch_xla/utils/utils.py",
    "torch_xla/_internal/utils.py",
    "torch_xla/distributed/fsdp/utils.py",
    "torch_xla/experimental/distributed_checkpoint/util.py",
}

TEXTS = python_files(*FOLDERS) + sorted((ROOT / "docs").rglob("*.md")) + sorted(ROOT.glob("*.md"))


def test_nothing_is_marked_as_unfinished() -> None:
    none(
        f"{name_of(path)}:{number}: {found[0]}: do it, or write it in the tracker"
        for path in TEXTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := UNFINISHED.search(line))
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_and_folder_has_a_name_that_says_what_it_is_for(folder: str) -> None:
    files = python_files(folder)
    for path in {*files, *(path.parent for path in files)}:
        if path.stem in NAMELESS:
            assert name_of(path) in DOCUMENTED, f"{name_of(path)}: name it after what it does"


def test_a_class_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for path in python_files("torch_xla/_engine"):
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{name_of(path)}:{node.lineno}")
    assert len(places) > 250
    none(
        f"{', '.join(found)}: {name} means two things: give one its own name"
        for name, found in places.items()
        if len(found) > 1
    )
