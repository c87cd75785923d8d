"""The documents as a site: `make docs`. Pages are Markdown, the reference comes from the docstrings."""

import re
from pathlib import Path
from typing import Any

import torch_xla

project = "torch_xla"
author = "the torch_xla maintainers"
release = torch_xla.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"torch_xla {release}"
myst_heading_anchors = 4
autodoc_default_options = {"members": True, "member-order": "bysource"}


def to_restructured_text(lines: list[str]) -> list[str]:
    """A docstring as the docstrings here are written, with Markdown's backticks, fences and blocks, for Sphinx."""
    result: list[str] = []
    prose: list[str] = []
    language = ""  # of the block that a line is in; none: prose
    for line in [*lines, ""]:
        if line.startswith("```") or (language == "pycon" and not line) or (language == "python" and line[:1].strip()):
            language = "" if language else "text"
        elif not language and line.startswith((">>>", "    ")) and not (prose and prose[-1].strip()):
            language = "pycon" if line[0] == ">" else "python"
        if language and prose:
            result += [*_prose(prose), f".. code-block:: {language}", ""]
            prose = []
        shown = "" if line.startswith("```") else line
        (result if language else prose).append(f"   {shown}".rstrip() if language else shown)
    return result + _prose(prose)


def _prose(lines: list[str]) -> list[str]:
    def literal(code: re.Match[str]) -> str:
        return f"``{' '.join(code[1].split())}``" + "\\" * bool(code[2])  # a plural's s may not follow at once

    text = re.sub(r"(?<!`)`([^`]+)`(?!`)(?=(s?))", literal, "\n".join(lines))
    return [*re.sub(r"(?<![`\w])(\w+)_(?!\w)", r"\1\_", text).split("\n"), ""]


def write_reference(app: Any) -> None:
    """Writes the page that has the docstrings of every public module: a list kept by hand would miss some."""
    package = Path(torch_xla.__file__).parent
    page = ["# API", "", "The public names, from their docstrings. Every example runs in the tests."]
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if path.name == "__init__.py" else parts)
        if "._" in module or path.stem in ("__main__", "version"):
            continue
        page += ["", f"## `{module}`", "", "```{eval-rst}", f".. automodule:: {module}", "```"]
    (Path(app.srcdir) / "api.md").write_text("\n".join(page) + "\n")


def setup(app: Any) -> None:
    """Called by Sphinx."""

    def convert(app: Any, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
        lines[:] = to_restructured_text(lines)

    app.connect("builder-inited", write_reference)
    app.connect("autodoc-process-docstring", convert)
