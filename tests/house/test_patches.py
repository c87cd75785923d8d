"""The list of patches says why each is there, until when, and which test fails without it; the page agrees."""

import ast

from tests.house.source import ENGINE, ROOT, functions_of, name_of, nodes_of, none, python_files
from tests.patches import page
from torch_xla._engine.compat.patch import ALL
from torch_xla._engine.compat.replaced_internals import REPLACED

_TO_MEMORY = {"from_address", "in_dll", "memmove"}


def test_every_patch_has_a_reason_an_end_and_a_test() -> None:
    for each in [*ALL, *REPLACED]:
        assert each.why.endswith(".") and each.until.endswith(".") and each.test, each


def test_no_attribute_is_listed_twice() -> None:
    names = [name for patch in ALL for name in patch.names]
    assert len(names) == len(set(names)) > 90


def test_the_tests_that_are_named_exist() -> None:
    named = {each.test for each in [*ALL, *REPLACED]}
    missing = []
    for test in named:
        path, _, function = test.partition("::")
        file = ROOT / "tests" / path
        if not file.exists() or function not in {each.name for each in functions_of(file)}:
            missing.append(f"tests/{test} is named in a list of compat/ and does not exist")
    none(missing)


def test_functions_that_write_to_memory_are_in_the_list() -> None:
    listed = {ENGINE / "compat" / f"{each.function.rpartition('.')[0].replace('.', '/')}.py" for each in REPLACED}
    none(
        f"{name_of(path)}:{node.lineno}: {node.attr}: write to memory in compat/, by an entry in replaced_internals.py"
        for path in python_files("torch_xla")
        if path not in listed and name_of(path) != "torch_xla/_engine/transfer/dlpack.py"  # which reads capsules
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr in _TO_MEMORY
    )


def test_the_page_is_written_from_the_list() -> None:
    assert page.PAGE.read_text() == page.text(), "python -m tests.patches --write"
