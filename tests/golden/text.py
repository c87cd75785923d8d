"""A program's graph and its StableHLO as one text, and the paths of the stored texts."""

import re
from pathlib import Path

import jax
import torch

import torch_xla
from tests.golden.programs import PROGRAMS
from torch_xla._engine.step import pending_text

FOLDER = Path(__file__).parent / "texts"

# StableHLO is written by JAX, whose releases differ in it: texts are compared where they were written.
JAX_RELEASE = ".".join(jax.__version__.split(".")[:2])
WRITTEN_WITH = FOLDER / "jax_release.txt"


def path_of(name: str) -> Path:
    """The file of the program called `name`."""
    return FOLDER / f"{name}.txt"


def text_of(name: str) -> str:
    """Return the recorded graph and the StableHLO of the program called `name`."""
    torch.manual_seed(0)
    torch_xla.sync()
    results = PROGRAMS[name]()
    graph, stablehlo = pending_text.ir_text(results), pending_text.stablehlo_text(results)
    stablehlo = re.sub(r" loc\(.*?\)$", "", stablehlo, flags=re.MULTILINE)
    return f"{graph}\n{stablehlo.rstrip()}\n"
