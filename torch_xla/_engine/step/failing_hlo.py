"""Write the HLO of a failed program to a file or into the error."""

from collections.abc import Sequence
from pathlib import Path

from .. import config
from ..compile import program_text
from ..compile.program import Program


def tell_hlo(program: Program, numbers: Sequence[float | int]) -> str:
    """Saves the HLO where `XLA_SAVE_HLO_FILE` says; returns what the error is to say, which is little without settings.

    With `XLA_DUMP_HLO_GRAPH` that is the whole HLO.
    """
    file = config.save_hlo_file()
    if not file and not config.dump_hlo_graph():
        return ""
    hlo = program_text.hlo(program.lowered(numbers))
    told = ""
    if file:
        Path(file).write_text(hlo)
        told += f"\nIts HLO is in {file}."
    if config.dump_hlo_graph():
        told += f"\nIts HLO:\n{hlo}"
    return told
