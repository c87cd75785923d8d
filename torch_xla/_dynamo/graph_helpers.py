"""Helpers of back ends that turn FX graphs into graphs with a hash (`_XLAC._get_graph_hash`, `_run_cached_graph`)."""

from collections.abc import Collection, Mapping, Sequence

import torch

from .. import _XLAC
from .._engine import metrics


class GraphInputMatcher:
    """The inputs of a cached graph for new arguments of the function it was recorded from.

    `graph_input_tensor_ids` and `graph_input_xla_values` are what `_XLAC._get_tensors_xla_device_data_node` returned.
    `tensor_id_to_arg_idx` gives the argument for the identity of a tensor, `xla_args_tensor_id` the identities of all
    arguments: their values are not kept alive. Other inputs, such as constants, keep the value of the recording.

    >>> import torch, torch_xla
    >>> from torch_xla import _XLAC
    >>> from torch_xla.core.dynamo_bridge import GraphInputMatcher
    >>> x, weight = torch.ones(2).to("xla"), torch.full((2,), 3.0).to("xla")
    >>> y = x * weight
    >>> ids, values = _XLAC._get_tensors_xla_device_data_node([y])
    >>> number = _XLAC._xla_get_tensor_id(x)
    >>> inputs_for = GraphInputMatcher({number: 0}, ids, values, {number})
    >>> _XLAC._run_cached_graph(_XLAC._get_graph_hash([y]), inputs_for([torch.full((2,), 5.0).to("xla")]))[0].tolist()
    [15.0, 15.0]
    """

    def __init__(
        self,
        tensor_id_to_arg_idx: Mapping[int, int],
        graph_input_tensor_ids: Sequence[int],
        graph_input_xla_values: Sequence[torch.Tensor],
        xla_args_tensor_id: Collection[int] = (),
    ) -> None:
        self.tensor_id_to_arg_idx = dict(tensor_id_to_arg_idx)
        self.graph_input_tensor_ids = list(graph_input_tensor_ids)
        self.xla_args_tensor_id = set(xla_args_tensor_id)
        taken = self.xla_args_tensor_id.union(self.tensor_id_to_arg_idx)
        self.graph_input_xla_values = [
            None if number in taken else value
            for number, value in zip(self.graph_input_tensor_ids, graph_input_xla_values, strict=True)
        ]

    def __call__(self, args: Sequence[object]) -> list[object]:
        """Return the graph's inputs where the function is called with `args`."""
        found = []
        for number, value in zip(self.graph_input_tensor_ids, self.graph_input_xla_values, strict=True):
            place = self.tensor_id_to_arg_idx.get(number)
            if place is not None:
                found.append(args[place])
            elif number == _XLAC._get_seed_info_id():
                found.append(_XLAC._get_base_seed_as_tensor())
            elif value is None:
                raise ValueError(f"GraphInputMatcher: no argument is known for the tensor {number}, which has no value")
            else:
                found.append(value)
        return found


class NoneRemover:
    """Takes `None` out of a list, and puts it back into another list of as many other elements.

    >>> from torch_xla.core.dynamo_bridge import NoneRemover
    >>> values, remover = [None, 1, None, 2], NoneRemover()
    >>> remover.remove_nones(values)
    >>> values
    [1, 2]
    >>> remover.add_nones(values)
    >>> values
    [None, 1, None, 2]
    """

    def __init__(self) -> None:
        self.none_poslist: list[int] = []

    def remove_nones(self, value_list: list[object]) -> None:
        """Take `None` out of a list in place, and remember the positions."""
        self.none_poslist = [place for place, value in enumerate(value_list) if value is None]
        value_list[:] = [value for value in value_list if value is not None]

    def add_nones(self, value_list: list[object]) -> None:
        """Put `None` back in place, at the positions that `remove_nones` found."""
        for place in self.none_poslist:
            value_list.insert(place, None)


class Deduper:
    """Takes repeated objects out of a list, and repeats the elements of another list in the same way.

    >>> from torch_xla.core.dynamo_bridge import Deduper
    >>> deduper, once = Deduper(), object()
    >>> len(deduper.dedup([once, 2, once])), deduper.recover(["a", "b"])
    (2, ['a', 'b', 'a'])
    """

    def __init__(self) -> None:
        self.permute_for_orig: list[int] = []

    def dedup(self, input_list: Sequence[object]) -> list[object]:
        """Return each object of a list once, in the order of its first place."""
        places: dict[int, int] = {}
        found: list[object] = []
        self.permute_for_orig = []
        for value in input_list:
            if id(value) not in places:
                places[id(value)] = len(found)
                found.append(value)
            self.permute_for_orig.append(places[id(value)])
        return found

    def recover(self, deduped_list: Sequence[object]) -> list[object]:
        """Return a list like the one that `dedup` took, of other elements."""
        return [deduped_list[place] for place in self.permute_for_orig]


class UnsupportedNodesCollector(torch.fx.Interpreter):
    """Runs an FX graph node by node, and collects the nodes that do not run on the device alone.

    Such a node has an operator that ran on the CPU, or takes or returns a tensor that is not on `xla`.

    >>> import torch, torch_xla
    >>> from torch_xla.core.dynamo_bridge import UnsupportedNodesCollector
    >>> graph = torch.fx.symbolic_trace(lambda x: (x + 1).cpu() * 2)
    >>> collector = UnsupportedNodesCollector(graph)
    >>> _ = collector.run(torch.ones(2, device="xla"))
    >>> [node.name for node in collector.get_unsupported_nodes()]
    ['cpu', 'mul']
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self._unsupported_nodes: list[torch.fx.Node] = []

    def run_node(self, n: torch.fx.Node) -> list[object]:
        """Run a node, and note whether the device ran it."""
        before = _fallbacks()
        result = super().run_node(n)
        if n.op in ("call_function", "call_method", "call_module"):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            if _fallbacks() != before or not _is_on_xla((result, args, kwargs)):
                self._unsupported_nodes.append(n)
        return result

    def get_unsupported_nodes(self) -> list[torch.fx.Node]:
        """Return the nodes, in the order of the graph."""
        return self._unsupported_nodes


def _fallbacks() -> dict[str, int | None]:
    return {name: metrics.counter_value(name) for name in metrics.fallback_names()}


def _is_on_xla(value: object) -> bool:
    """Return whether all tensors in a nested value are on `xla`."""
    if isinstance(value, torch.Tensor):
        return value.device.type == "xla"
    if isinstance(value, list | tuple):
        return all(map(_is_on_xla, value))
    return all(map(_is_on_xla, value.values())) if isinstance(value, dict) else True
