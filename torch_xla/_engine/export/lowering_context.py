"""A recorded computation as an HLO module, and the tensors behind its parameters."""

import re
from collections.abc import Sequence
from typing import Any

import torch

from ..step import inputs_of_graph, pending_graph
from ..tensor.storage import snapshot
from ..transfer.batch_reads import to_host
from .hlo_proto import json_of, renamed


class LoweringContext:
    """The computation of some tensors, taken by `build`, as HLO.

    Its parameters are what is on the device already, in the order of their numbers; numbers and random keys of Python,
    where there are any, follow as parameters of their own.

    >>> import torch, torch_xla
    >>> x = torch.ones(2, device="xla")
    >>> context = torch_xla._XLAC.lowering.LoweringContext("sum")
    >>> context.build([x + x])
    >>> context.tensor_parameter_id(x), "add" in context.hlo_text()
    (0, True)
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name or "computation"
        self._pending: pending_graph.Pending | None = None
        self._inputs: list[torch.Tensor] = []

    def build(self, tensors: Sequence[torch.Tensor]) -> None:
        """Lower the operations recorded for these tensors, which become the results."""
        self._pending = pending_graph.graph_of([pending_graph.on_xla(each) for each in tensors])
        self._inputs = inputs_of_graph(tensors)[1][: len(self._pending.inputs)]

    def hlo(self) -> bytes:
        """Return the module as a serialised `HloModuleProto`, under the name of this context."""
        module: Any = self._built().lowered().compiler_ir("hlo")
        return renamed(module.as_serialized_hlo_module_proto(), self._name)

    def hlo_text(self) -> str:
        """Return the module as text."""
        text = str(self._built().lowered().as_text("hlo"))
        return re.sub(r"^HloModule [^\s,]+", lambda _: f"HloModule {self._name}", text, count=1)

    def hlo_json(self) -> str:
        """Return the module as JSON: computations and instructions, with their metadata and frontend attributes."""
        return json_of(self.hlo())

    def parameter_id_tensor_mapping(self) -> dict[int, torch.Tensor]:
        """Return the tensors behind the parameters by their numbers, on the CPU."""
        return dict(enumerate(to_host(self._inputs)))

    def device_parameter_id_tensor_mapping(self) -> dict[int, torch.Tensor]:
        """Return the same on the device, without a copy."""
        return dict(enumerate(self._inputs))

    def tensor_parameter_id(self, tensor: torch.Tensor) -> int:
        """Return the number of the parameter that a tensor is, or -1."""
        wanted = snapshot(pending_graph.on_xla(tensor))
        return next((place for place, each in enumerate(self._inputs) if snapshot(each) is wanted), -1)

    def set_name_string(self, name: str) -> None:
        """Set the name of the context."""
        self._name = name

    def get_name_string(self) -> str:
        """Return the name of the context."""
        return self._name

    def _built(self) -> pending_graph.Pending:
        if self._pending is None:
            raise RuntimeError("this LoweringContext holds no computation yet: call build(tensors) first")
        return self._pending
