"""Makes the wheel small: without comments and docstrings that `help()` shows nobody, as small as its format allows.

These are the docstrings of private functions, of the modules of `_engine`, and of all functions and classes in those
of its rooms that users meet nothing of. With them, or with zlib as builders use it, it would have more than 1 MB. The
lines stay, so that tracebacks name those of the repository and of the source distribution, which have the comments.
"""

import ast
import base64
import hashlib
import io
import os
import tokenize
import zipfile
from typing import Any
from unittest.mock import patch

import zopfli.zlib
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Rooms of `_engine` that users meet nothing of.
ROOMS = ("client", "compile", "dispatch", "dynamo", "execute", "graph", "lowering", "operators", "record", "view")
INNER = tuple(f"torch_xla/_engine/{room}/" for room in ROOMS)


class Deflater:
    """What `zipfile` compresses a member with: zopfli's stream, without the head and the sum that zlib's have."""

    def __init__(self, *_: Any) -> None:
        self._data = bytearray()

    def compress(self, data: bytes) -> bytes:
        self._data += data
        return b""

    def flush(self) -> bytes:
        return zopfli.zlib.compress(bytes(self._data), numiterations=5)[2:-4]


def without_comments(source: bytes) -> bytes:
    """The source with each line as it is before its comment; one in a string is none."""
    lines = source.decode().splitlines(keepends=True)
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip() + "\n"
    return "".join(lines).encode()


def without_private_docstrings(source: bytes, is_private_module: bool, is_inner: bool) -> bytes:
    """The source with empty lines for docstrings of functions and classes whose name begins with one `_`, in an inner
    room of all of them, and for that of a module that is private.
    """
    lines = source.decode().splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_private = is_inner or (node.name.startswith("_") and not node.name.startswith("__"))
        elif isinstance(node, ast.Module):
            is_private = is_private_module
        else:
            continue
        if is_private and ast.get_docstring(node) is not None and len(node.body) > 1:
            first, last = node.body[0].lineno, node.body[0].end_lineno
            assert last is not None
            lines[first - 1 : last] = ["\n"] * (last - first + 1)
    return "".join(lines).encode()


def recorded(name: str, data: bytes) -> str:
    """A member's line in RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(data)}\n"


class CustomBuildHook(BuildHookInterface):
    """Called by hatchling, the name of the class too."""

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "standard":  # an editable installation holds but a path
            return
        smaller = f"{artifact_path}.smaller"
        lines = []
        with zipfile.ZipFile(artifact_path) as built, zipfile.ZipFile(smaller, "w") as wheel:
            with patch.object(zipfile, "_get_compressor", Deflater):
                for member in built.infolist():  # RECORD is the last
                    data = built.read(member)
                    if member.filename.endswith(".py"):
                        is_private = member.filename.startswith("torch_xla/_engine/")
                        is_inner = member.filename.startswith(INNER)
                        data = without_private_docstrings(without_comments(data), is_private, is_inner)
                    if member.filename.endswith(".dist-info/RECORD"):
                        data = "".join([*lines, f"{member.filename},,\n"]).encode()
                    lines.append(recorded(member.filename, data))
                    wheel.writestr(member, data)
        os.replace(smaller, artifact_path)
