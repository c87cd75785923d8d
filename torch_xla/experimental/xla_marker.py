"""Marks that make a part of an exported model a composite of StableHLO. `mark_pattern_utils` sets them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .._engine.lowering.machinery import xla_op_schemas


@dataclass
class BoundaryMetadata:
    """One mark: the composite's name and identity, and the index of the tensor among its inputs or outputs."""

    name: str
    pos: int
    id: str
    is_input: bool = True
    attr: Mapping[str, object] | None = None


class BoundaryMetadataSerializer(json.JSONEncoder):
    """Encode marks as JSON.

    >>> import json
    >>> from torch_xla.experimental.xla_marker import BoundaryMetadata, BoundaryMetadataSerializer
    >>> json.dumps(BoundaryMetadata("gelu", 0, "a"), cls=BoundaryMetadataSerializer)
    '{"name": "gelu", "pos": 0, "id": "a", "is_input": true, "attr": null}'
    """

    def default(self, o: object) -> Any:
        """Return a mark as a dictionary of its fields."""
        return asdict(o) if isinstance(o, BoundaryMetadata) else super().default(o)


def serialize_composite_attr(attr: Mapping[str, object] | None) -> str | None:
    """Return the attributes of a composite (numbers, strings, booleans, lists of one of them) as the text of a mark.

    >>> from torch_xla.experimental.xla_marker import serialize_composite_attr
    >>> serialize_composite_attr({"scale": 0.5})
    '{"scale": 0.5}'
    """
    if not attr:
        return None
    for name, value in attr.items():
        kinds = {type(each) for each in value} if isinstance(value, list | tuple) else {type(value)}
        if not isinstance(name, str) or not kinds <= {str, int, float, bool} or len(kinds) > 1:
            raise TypeError(
                "attributes of a composite are numbers, strings and booleans by name, or lists of one of these; got "
                f"{name!r}: {value!r}"
            )
    return json.dumps(attr)


def deserialize_composite_attr(attr: str | None) -> dict[str, Any]:
    """Return the attributes in a text of `serialize_composite_attr`."""
    return json.loads(attr) if attr else {}


def mark_tensor(x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: str | None = None) -> torch.Tensor:
    """Return a copy of `x`, marked as input or output number `pos` of the composite `name` with the identity `id`."""
    return xla_op_schemas.mark_tensor(x, name, pos, id, is_input, attr)


# The operator is the same on both devices.
mark_tensor_xla = mark_tensor


def mark_tensor_meta(
    x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: str | None = None
) -> torch.Tensor:
    """Return the result of `mark_tensor` without values."""
    return xla_op_schemas.mark_tensor_meta(x, name, pos, id, is_input, attr)
