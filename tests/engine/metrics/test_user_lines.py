"""The user's line, found for each instruction once."""

import sys
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.debug as debug
from torch_xla._engine.metrics import user_lines


def asked_from(source: str, name: str) -> user_lines.Line:
    space: dict[str, Any] = {"user_lines": user_lines.user_lines}
    exec(compile(source, name, "exec"), space)
    [line] = space["asked"]()
    return line


def test_code_that_takes_the_memory_of_other_code_is_not_taken_for_it() -> None:
    for index in range(50):
        source = "\n" * index + f"def asked():\n    return user_lines(1)  # {index}\n"
        assert asked_from(source, f"<cell {index}>") == (f"<cell {index}>", index + 2, "asked")


def test_functions_made_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_lines, "_MOST_CODE", 8)
    monkeypatch.setattr(user_lines, "_found", {})
    for index in range(30):
        asked_from("def asked():\n    return user_lines(1)\n", f"<cell {index}>")
        assert len(user_lines._found) <= 8


def test_several_lines_of_one_function_and_several_calls_of_one_line_are_told_apart() -> None:
    asked = []
    for _ in range(3):
        asked.append(user_lines.user_lines(1)[0][1])
        asked.append(user_lines.user_lines(1)[0][1])
        asked.append(user_lines.user_line()[1])
    first = asked[0]
    assert asked == [first, first + 1, first + 2] * 3
    assert user_lines.user_lines(1, sys._getframe(0)) == user_lines.user_lines(5)[:1]


def test_reads_of_every_kind_are_the_users_lines() -> None:
    x = torch.ones(3).to("xla")
    debug.clear_history()
    for _ in range(2):
        x.sum().item()
        x.cpu()
        bool(x[0] > 0)
        torch.equal(x, x + 1)
        str(x)
        x.untyped_storage().cpu()
        float(x[1])
    torch_xla.sync()
    costs = debug.sync_costs()
    assert {cost.line[0] for cost in costs} == {__file__}
    assert len({cost.line[1] for cost in costs}) == 7
    assert all(cost.reads == 2 for cost in costs)


def test_the_users_own_files_are_told_from_installed_ones() -> None:
    assert user_lines.is_users_own(__file__) and user_lines.is_users_own("<stdin>")
    assert user_lines.belongs_to_user(pytest.__file__) and not user_lines.is_users_own(pytest.__file__)
    assert not user_lines.is_users_own(torch.__file__) and not user_lines.is_users_own(user_lines.__file__)


def test_files_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_lines, "_MOST_FILES", 8)
    monkeypatch.setattr(user_lines, "_is_users", {})
    for index in range(30):
        assert asked_from("def asked():\n    return user_lines(1)\n", f"<cell {index}>")[0] == f"<cell {index}>"
        assert len(user_lines._is_users) <= 8
