"""Checkpoints in Orbax's format: its arrays are read by their slices, and Orbax itself writes.

Orbax keeps a tree in a folder, an item: `_METADATA` has the keys of each leaf, and TensorStore the arrays, which are
named by these keys, with dots between them. `torch.distributed.checkpoint` names the tensors of a state dict in the
same way, so its planners read a checkpoint of Orbax on any mesh.
"""

import importlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.checkpoint import StorageReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.tensor import DTensor
from torch.futures import Future

from ..._engine.dtypes import to_numpy
from ..._engine.processes import process_index
from ..._engine.tensor import from_numpy
from ._helpers import _CpuShards, flatten_state_dict
from ._messages import Messages

_METADATA = "_METADATA"
MARK = "_CHECKPOINT_METADATA"  # a file of each step
_STRINGS = "_strings.json"
_ITEM = "default"  # the name that Orbax's manager gives to the only item of a step
_OF_LIST = 1  # the kind of a key that is a place in a list or a tuple
_Keys = tuple[str | int, ...]


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"A checkpoint of Orbax needs {name}: pip install orbax-checkpoint ({error})") from error


def items_of(folder: Path) -> dict[str, Path]:
    """Return the items of a step by their names; one that is the folder itself, or the only one, has no name."""
    if (folder / _METADATA).exists():
        return {"": folder}
    if not folder.is_dir():
        return {}
    found = {each.name: each for each in sorted(folder.iterdir()) if (each / _METADATA).exists()}
    return {"": next(iter(found.values()))} if len(found) == 1 else found


def written_at(folder: Path) -> int:
    """Return when a step was complete, in nanoseconds."""
    return max((each / _METADATA).stat().st_mtime_ns for each in items_of(folder).values())


class _Leaf(NamedTuple):
    """A leaf of an item."""

    item: Path
    name: str
    kind: str  # "jax.Array", "np.ndarray", "scalar", "string", "None", "Dict", "List" and others
    is_zarr3: bool
    is_ocdbt: bool

    def array(self) -> Any:
        """Return TensorStore's array, which is read by slices."""
        base = f"file://{self.item.absolute()}"
        store: dict[str, object] = {"driver": "ocdbt", "base": base, "path": f"{self.name}/"}
        if not self.is_ocdbt:
            store = {"driver": "file", "path": str(self.item.absolute() / self.name)}
        spec = {"driver": "zarr3" if self.is_zarr3 else "zarr", "kvstore": store}
        return _library("tensorstore").open(spec, open=True, read=True).result()

    def value(self) -> object:
        """Return a leaf for a place that is no tensor's: a Python number, a text, a tensor of the CPU, or None."""
        if self.kind == "None":
            return None
        if self.kind in ("Dict", "List", "Tuple"):  # empty ones are leaves
            return {"Dict": {}, "List": [], "Tuple": ()}[self.kind]
        if self.kind == "string":
            return json.loads((self.item / _STRINGS).read_text())[self.name]
        found = np.asarray(self.array().read().result())
        return found.item() if not found.ndim else from_numpy(found)


def _leaves(folder: Path) -> dict[_Keys, _Leaf]:
    """Return the leaves of a step by their keys; those of one of several items begin with its name."""
    found: dict[_Keys, _Leaf] = {}
    for prefix, item in items_of(folder).items():
        described = json.loads((item / _METADATA).read_text())
        for each in described["tree_metadata"].values():
            parts = each["key_metadata"]
            name = ".".join(part["key"] for part in parts)
            keys = tuple(int(part["key"]) if part["key_type"] == _OF_LIST else part["key"] for part in parts)
            kind = each["value_metadata"]["value_type"]
            leaf = _Leaf(item, name, kind, described.get("use_zarr3", False), described.get("use_ocdbt", False))
            found[(prefix, *keys) if prefix else keys] = leaf
    return found


def is_whole(folder: Path) -> bool:
    """Return whether all arrays can be read, with the checksums that Orbax's storage has of its larger parts."""
    try:
        for leaf in _leaves(folder).values():
            leaf.value()
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return False
    return True


class OrbaxReader(StorageReader):
    """Read a step that Orbax has written, for `torch.distributed.checkpoint.load` into `state_dict`.

    A place of the state dict that is no tensor's takes all below its keys, as numbers, texts, dicts and lists.
    """

    def __init__(self, folder: Path, state_dict: Mapping[str, object]) -> None:
        self._leaves = _leaves(folder)
        self._by_name = {".".join(map(str, keys)): leaf for keys, leaf in self._leaves.items()}
        flat, self._paths = flatten_state_dict(dict(state_dict))
        self._others = {name for name, each in flat.items() if not isinstance(each, torch.Tensor)}

    def reset(self, checkpoint_id: object = None) -> None:
        """Do nothing: a reader is for one step."""

    def read_metadata(self, *args: object, **options: object) -> Metadata:
        """Return shapes and dtypes of the arrays, each as one chunk."""
        found: dict[str, Any] = {}
        for name, leaf in self._by_name.items():
            if name in self._others or leaf.kind not in ("jax.Array", "np.ndarray", "scalar"):
                continue
            array = leaf.array()
            size = torch.Size(array.shape)
            dtype = from_numpy(np.empty(0, array.dtype.numpy_dtype)).dtype
            chunks = [ChunkStorageMetadata(torch.Size([0] * len(size)), size)]
            found[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), size, chunks)
        found |= {name: BytesStorageMetadata() for name in self._others if self._below(name)}
        return Metadata(found)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: object, **options: object) -> None:
        """Do nothing: all is known."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan of this process."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans of all processes."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the parts that the plan asks for."""
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type is LoadItemType.BYTE_IO:
                stream = io.BytesIO()
                torch.save(self._value(name), stream)
                stream.seek(0)
                planner.load_bytes(item, stream)
                continue
            begins = zip(item.storage_offsets, item.lengths, strict=True)
            part = self._by_name[name].array()[tuple(slice(begin, begin + size) for begin, size in begins)]
            target = planner.resolve_tensor(item).detach()
            target.copy_(from_numpy(np.array(part.read().result())))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        """Return whether there is a checkpoint of Orbax."""
        return bool(items_of(Path(str(checkpoint_id))))

    def _below(self, name: str) -> dict[_Keys, _Leaf]:
        """Return the leaves below the keys of a place, by the rest of their keys."""
        path = self._paths[name]
        count = len(path)
        same = [keys for keys in self._leaves if list(map(str, keys[:count])) == list(map(str, path))]
        return {keys[count:]: self._leaves[keys] for keys in same}

    def _value(self, name: str) -> object:
        return _nested([(keys, leaf.value()) for keys, leaf in self._below(name).items()])


def _nested(leaves: Iterable[tuple[_Keys, object]]) -> object:
    """Return the dicts and lists that have these values at their keys."""
    groups: dict[str | int, list[tuple[_Keys, object]]] = {}
    for keys, value in leaves:
        if not keys:
            return value
        groups.setdefault(keys[0], []).append((keys[1:], value))
    if all(isinstance(each, int) for each in groups):
        return [_nested(groups[key]) for key in sorted(groups)]
    return {key: _nested(each) for key, each in groups.items()}


def write(folder: Path, state_dict: Mapping[str, object], messages: Messages) -> None:
    """Let Orbax write a state dict, whose tensors are on the CPU, as the only item of a step.

    The first process writes, and gets the parts of tensors that other processes have. If it can't, all raise its error.
    """
    wholes = _gathered(dict(_shards_of(state_dict, "")), messages)
    error: Exception | None = None
    if messages.rank == 0:
        try:
            _write(folder, _tree(state_dict, "", wholes), messages.world)
        except Exception as caught:  # whatever it is, the others must not wait for this process
            error = caught
    said = messages.gather("" if error is None else f"{type(error).__name__}: {error}")[0]
    if error is not None:
        raise error
    if said:
        raise RuntimeError(f"the process that writes for all could not: {said}")


def _write(folder: Path, tree: object, world: int) -> None:
    library = _library("orbax.checkpoint")
    alone = {}
    if world > 1:  # the others do not call Orbax, which would wait for them
        index = process_index()
        options = library.options.MultiprocessingOptions(
            primary_host=index, active_processes={index}, barrier_sync_key_prefix="torch_xla"
        )
        alone = {"multiprocessing_options": options}
    handler = library.CompositeCheckpointHandler(
        composite_options=library.CompositeOptions(**alone), **{_ITEM: library.PyTreeCheckpointHandler(**alone)}
    )
    writer = library.Checkpointer(handler, **alone)
    try:
        writer.save(folder.absolute(), args=library.args.Composite(**{_ITEM: library.args.PyTreeSave(tree)}))
    finally:
        writer.close()


def _shards_of(value: object, name: str) -> Iterator[tuple[str, _CpuShards]]:
    """Return the tensors of `xla` in a tree, by the names of `_tree`."""
    if isinstance(value, _CpuShards):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _shards_of(each, _below(name, key))
    elif isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            yield from _shards_of(each, _below(name, place))


def _below(name: str, key: object) -> str:
    return f"{name}.{key}".lstrip(".")


def _gathered(own: Mapping[str, _CpuShards], messages: Messages) -> dict[str, torch.Tensor]:
    """Return the whole tensors by their names in the first process, and nothing in the others.

    Each part comes from the first process that has it, one tensor after the other.
    """
    held = messages.gather({name: {begin: part.shape for begin, part in of.shards.items()} for name, of in own.items()})
    sends, found = [], {}
    for name, of in own.items():
        places = {begin: rank for rank in reversed(range(messages.world)) for begin in held[rank].get(name, ())}
        if messages.rank:
            sends += [(0, _bytes(of.shards[begin])) for begin, rank in sorted(places.items()) if rank == messages.rank]
            continue
        whole, count = torch.empty(of.global_shape, dtype=of.dtype), 0
        for begin, rank in sorted(places.items()):
            part = of.shards[begin] if rank == 0 else torch.empty(held[rank][name][begin], dtype=of.dtype)
            if rank:
                messages.receive([(rank, _bytes(part))])
            whole[tuple(slice(at, at + size) for at, size in zip(begin, part.shape, strict=True))] = part
            count += part.numel()
        if count != whole.numel():
            raise RuntimeError(f"{name!r} has {whole.numel()} elements, and the processes have {count} of them")
        found[name] = whole
    messages.begin_to_send(sends)()
    return found


def _bytes(part: torch.Tensor) -> torch.Tensor:
    return part.reshape(-1).view(torch.uint8)


def _tree(value: object, name: str, wholes: Mapping[str, torch.Tensor]) -> object:
    """Return a value as Orbax takes it: arrays of NumPy, numbers and texts in dicts and lists."""
    if isinstance(value, Mapping):
        return {key: _tree(each, _below(name, key), wholes) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [_tree(each, _below(name, place), wholes) for place, each in enumerate(value)]
    if isinstance(value, _CpuShards):
        value = to_numpy(wholes[name])
    if isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
        value = to_numpy(value)
    if isinstance(value, (np.ndarray, np.generic)) and not value.size:
        raise ValueError(f"CheckpointManager(format='orbax'): {name!r} is empty, and Orbax writes no empty arrays")
    if value is None or isinstance(value, (np.ndarray, np.generic, bool, int, float, str)):
        return value
    raise TypeError(
        f"CheckpointManager(format='orbax'): {name!r} is a {type(value).__name__}, and Orbax writes tensors, arrays, "
        f"numbers, texts and None, in dicts and lists. Leave it out, or save without format="
    )
