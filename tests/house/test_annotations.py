"""Annotations name a type: `Any` turns the checker off wherever the value goes."""

import ast

from tests.house.source import nodes_of, python_files

# Lower this bound with each change that names a type or writes `object` for what is only passed on.
MOST_ANY = 0.078


def annotations() -> list[ast.expr]:
    found: list[ast.expr | None] = []
    for path in python_files("torch_xla"):
        for node in nodes_of(path):
            if isinstance(node, ast.arg | ast.AnnAssign):
                found.append(node.annotation)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(node.returns)
    return [each for each in found if each is not None]


def has_any(annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    return any(isinstance(each, ast.Name) and each.id == "Any" for each in ast.walk(annotation))


def test_few_annotations_are_any() -> None:
    found = annotations()
    count = sum(map(has_any, found))
    share = count / len(found)
    assert share <= MOST_ANY, f"{count} of {len(found)} annotations ({share:.3f}) contain `Any`"
    assert share > MOST_ANY - 0.01, f"lower MOST_ANY to {share:.3f}"
