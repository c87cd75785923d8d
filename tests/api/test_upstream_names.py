"""Every public name of PyTorch/XLA 2.9 exists, is refused with a reason, or belongs to an area that is planned.

`upstream_names.txt` has a line for each: module, name, and the reason if it does not exist: `refused`, or its area.
"""

import importlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.compat.removed_names import REASONS
from torch_xla._engine.doctor.findings import REMOVED

TABLE = Path(__file__).with_name("upstream_names.txt")
ROOT = Path(__file__).parents[2]

# Areas in which names may still be missing. One that has come loses its mark in the table, and then has to stay.
AREAS = {"sharding", "experimental", "export"}

Names = dict[str, list[tuple[str, str]]]


def names() -> Names:
    found: Names = defaultdict(list)
    for line in TABLE.read_text().splitlines():
        module, name, state = (line.split() + [""])[:3]
        found[module].append((name, state))
    return found


NAMES = names()


def resolved(module: str, name: str) -> Any:
    found: Any = torch.ops.xla if module == "torch.ops.xla" else importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("module", NAMES)
def test_names_are_there_or_refused_with_the_reason(module: str) -> None:
    for name, state in NAMES[module]:
        if state == "refused":
            with pytest.raises(AttributeError) as error:
                resolved(module, name)
            owner = name.partition(".")[0]  # a class is refused with what it has
            reason = REASONS[module][owner]
            assert str(error.value) == f"{module}.{owner} is not in this version of torch_xla: {reason}."
        elif state:
            assert state in AREAS, f"{module}.{name}: {state!r} is no area"
        else:
            resolved(module, name)


def test_what_is_refused_is_a_name_of_upstream() -> None:
    listed = [(module, *each) for module, names in NAMES.items() for each in names]
    refused = {(module, name.partition(".")[0]) for module, name, state in listed if state == "refused"}
    assert refused == {(module, name) for module, reasons in REASONS.items() for name in reasons}


def test_the_migration_guide_has_what_is_not_here() -> None:
    page = (ROOT / "docs" / "from_pytorch_xla.md").read_text()
    told = {name for reasons in REASONS.values() for name in reasons} | set(REASONS) | set(REMOVED)
    assert {name for name in told if f"`{name}`" not in page} == set()


def test_an_unknown_name_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="module 'torch_xla._XLAC' has no attribute 'nothing'"):
        torch_xla._XLAC.nothing  # noqa: B018
    assert not hasattr(torch_xla._XLAC, "_get_xla_op_sharding_v2_params")
