"""Pass 3, fuse: cut the chosen operations out of the tape as one graph, which becomes one program."""

from .. import config
from ..ir.graph import cut
from ..ir.verify_graph import verify
from .step import Draft


def fuse(draft: Draft) -> Draft:
    """Make one graph of the chosen operations. Its inputs are the values of the tape that they read."""
    draft.part = cut(draft.inputs, draft.operations, draft.chosen, draft.outputs)
    if config.check():
        verify(draft.part.graph)
    return draft
