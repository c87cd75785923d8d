"""Record the marks of composites.

The identity of a composite's marks is new at each call of a model. Here it becomes the composite's number on the tape,
so that equal steps are one program.
"""

import torch
from torch import Tensor

from ...ir.tape import Tape
from ...lowering.machinery.xla_op_schemas import check_attributes
from ...tensor.storage import value_of
from ..recording_kernel import recorder

_record = recorder("xla::mark_tensor")


def mark_tensor(x: Tensor, name: str, pos: int, id: str, is_input: bool, attr: object = None) -> torch.Tensor:
    """Return a copy of `x` that is marked as an input or output of a composite."""
    check_attributes(name, attr)
    tape: Tape = value_of(x).device.tape
    number = tape.composites.setdefault((name, id), len(tape.composites))
    return _record(x, name, pos, str(number), is_input, attr)


KERNELS = {"xla::mark_tensor": mark_tensor}
