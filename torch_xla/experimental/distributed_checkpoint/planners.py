"""Planners for `torch.distributed.checkpoint`: they assign the shards of a tensor on a mesh to processes."""

import io
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, WriteItem

from ._helpers import _CpuShards, _load, _own, _parts_to_load, _separated, _sharded_cpu_state_dict


class SPMDSavePlanner(DefaultSavePlanner):
    """Save the tensors on `xla` of a state dict by their shards, and other values as PyTorch's default planner does.

    A shard that several devices have is saved once. `torch.distributed.checkpoint.load` can read the files without this
    package. `sharded_state_dict` has the tensors that are divided among the devices, by name, and
    `unsharded_state_dict` has all other values.

    >>> import tempfile, torch, torch.distributed.checkpoint as dcp, warnings
    >>> from torch_xla.experimental.distributed_checkpoint import SPMDSavePlanner
    >>> warnings.simplefilter("ignore")  # PyTorch warns that there is one process
    >>> state = {"w": torch.ones(2, device="xla")}
    >>> _ = dcp.save(state, checkpoint_id=tempfile.mkdtemp(), planner=SPMDSavePlanner(), no_dist=True)
    """

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: Any = None,
        is_coordinator: bool = False,
    ) -> None:
        """Copy this process's shards to the CPU."""
        self.sharded_state_dict, self.unsharded_state_dict = _separated(state_dict)
        super().set_up_planner(_sharded_cpu_state_dict(state_dict), storage_meta, is_coordinator)

    def create_local_plan(self) -> SavePlan:
        """Return the plan of this process, with an item for each of its shards."""
        return super().create_local_plan()

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Return the plans of all processes, and the metadata of the whole checkpoint."""
        return super().create_global_plan(all_plans)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Return the final plan of this process."""
        return super().finish_plan(new_plan)

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Return the tensor or the bytes that an item writes."""
        return super().resolve_data(write_item)

    def lookup_object(self, index: Any) -> object:
        """Return the entry of the state dict at an index: for a tensor on `xla`, the shard at this offset."""
        found = self.state_dict.get(index.fqn)
        return found.__get_tensor_shard__(index) if isinstance(found, _CpuShards) else super().lookup_object(index)

    def transform_object(self, write_item: WriteItem, object: object) -> Any:
        """Return the data to write for an object."""
        return super().transform_object(write_item, object)


class SPMDLoadPlanner(DefaultLoadPlanner):
    """Load the tensors on `xla` of a state dict by the shards that this process has of them now.

    The saved tensors may have had another sharding, or none. Other values are loaded as by PyTorch's default planner.
    `sharded_state_dict` and `unsharded_state_dict` are as in `SPMDSavePlanner`.

    >>> import tempfile, torch, torch.distributed.checkpoint as dcp, warnings
    >>> from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner
    >>> warnings.simplefilter("ignore")  # PyTorch warns that there is one process
    >>> path, state = tempfile.mkdtemp(), {"w": torch.ones(2, device="xla")}
    >>> _ = dcp.save(state, checkpoint_id=path, planner=SPMDSavePlanner(), no_dist=True)
    >>> state["w"].zero_().tolist()
    [0.0, 0.0]
    >>> dcp.load(state, checkpoint_id=path, planner=SPMDLoadPlanner(), no_dist=True)
    >>> state["w"].tolist()
    [1.0, 1.0]
    """

    def set_up_planner(
        self, state_dict: dict[str, object], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Allocate memory on the CPU for the values to read."""
        self.sharded_state_dict, self.unsharded_state_dict = _separated(state_dict)
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self._tensors = {
            name: value
            for name, value in self.state_dict.items()
            if isinstance(value, torch.Tensor) and value.device.type == "xla"
        }
        self.state_dict = dict(self.state_dict)

    def create_local_plan(self) -> LoadPlan:
        """Return the plan of this process, with an item for each of its shards."""
        self._parts = {name: _parts_to_load(tensor) for name, tensor in self._tensors.items()}
        self.state_dict.update(self._parts)
        plan = super().create_local_plan()
        for item in plan.items:
            if item.dest_index.fqn in self._parts:
                self._parts[item.dest_index.fqn].unread += 1
        return plan

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans of all processes."""
        return super().create_global_plan(global_plan)

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        """Return the final plan of this process."""
        return super().finish_plan(new_plan)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load a value that is not a tensor."""
        super().load_bytes(read_item, value)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Return the memory that an item is read to."""
        return super().resolve_tensor(read_item)

    def lookup_tensor(self, index: Any) -> torch.Tensor:
        """Return the shard at the offset of an index."""
        found = self.state_dict.get(index.fqn)
        return found.__get_tensor_shard__(index) if isinstance(found, _CpuShards) else super().lookup_tensor(index)

    def transform_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elements of a shard that an item fills."""
        return super().transform_tensor(read_item, tensor)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Copy a tensor to its devices once all of its shards are read."""
        name = read_item.dest_index.fqn
        parts = self._parts.get(name)
        if parts is None:
            return
        parts.unread -= 1
        if not parts.unread:
            _load([(_own(self._tensors[name]), parts.shards)])
            parts.shards.clear()
