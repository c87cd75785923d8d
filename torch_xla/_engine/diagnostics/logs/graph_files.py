"""Write recorded graphs to files, a new one for each call."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from ... import config
from ...step import pending_text

_LANGUAGES = {"text": pending_text.ir_text, "dot": pending_text.ir_dot, "hlo": pending_text.hlo_text}

_looks = itertools.count()


def save(folder: str | os.PathLike[str], name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Write the graph of `tensors` to a new file of the folder."""
    language = config.save_graph_format()
    if language not in _LANGUAGES:
        raise ValueError(f"SAVE_GRAPH_FMT is {language!r}; it must be one of {', '.join(_LANGUAGES)}")
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, f"{name}-{next(_looks)}.{language}").write_text(_LANGUAGES[language](tensors))
