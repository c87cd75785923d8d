"""Every private name of `torch.distributed` that the engine borrows, and why."""

import functools
import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch._C import _distributed_c10d as _c10d
from torch.distributed import distributed_c10d as _distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import Backend
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

from ...quiet_calls import quiet
from .. import patch_list

_device_mesh: Any = importlib.import_module(DeviceMesh.__module__)

# Their signatures in Python's stubs are those of its callers; who writes a group takes what C++ passes.
ProcessGroup: Any = _c10d.ProcessGroup
Work: Any = _c10d.Work
Reducer: Any = _c10d.Reducer  # type: ignore[attr-defined]
OptionsOfBackend: Any = _c10d.Backend.Options

__all__ = [
    "Backend", "OptionsOfBackend", "ProcessGroup", "Reducer", "Work", "register_rendezvous_handler", "rendezvous",
]  # fmt: skip


def spec_of_tensor(mesh: object, placements: Sequence[object], tensor: torch.Tensor) -> object:
    """Return the layout of PyTorch's own distributed tensors: a `DTensorSpec`, which has no public name."""
    specs = importlib.import_module("torch.distributed.tensor._dtensor_spec")
    meta = specs.TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
    return specs.DTensorSpec(mesh, tuple(placements), tensor_meta=meta)


def done(result: object) -> _c10d.Work:
    """Return a work that has ended. PyTorch offers none to groups written in Python."""
    future: torch.futures.Future[object] = torch.futures.Future()
    future.set_result(result)
    return _c10d._create_work_from_future(future)  # type: ignore[attr-defined]


def factor_of(op: object) -> float | torch.Tensor:
    """Return the factor of a reduction `PREMUL_SUM`, a number or a tensor.

    PyTorch shows the factor only to what saves the reduction.
    """
    state = op.__getstate__()  # a pair, or of the bare name PREMUL_SUM its number
    factor = state[1] if isinstance(state, tuple) else None
    if factor is None:
        raise ValueError("reduction PREMUL_SUM has no factor; write torch.distributed.ReduceOp.PREMUL_SUM(0.5)")
    return factor


def devices_asked_for(group: _c10d.ProcessGroup) -> list[str]:
    """Return the devices with a backend that the user named for the group: "cpu:gloo,xla:xla" names two."""
    backends = _distributed_c10d._world.pg_backend_config.get(group, "")
    return [each.partition(":")[0] for each in backends.split(",") if each]


def register_group(name: str, make: Callable[..., object]) -> None:
    """Let `make` create groups of the backend `name`, for the device type of the same name.

    From 2.15 on PyTorch's flight recorder listens to groups written in C++, and fails on one in Python that says which
    devices it is for. A backend that records itself is left alone.
    """
    Backend.register_backend(name, make, extended_api=True, devices=[name])
    recorded_by_themselves: set[str] = getattr(_distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recorded_by_themselves.add(name)


def keep_objects_on_host(group_of: type) -> None:
    """Send objects as bytes in host memory through groups of the class `group_of`."""

    def wrapper(original: Callable[..., str]) -> Callable[..., str]:
        def device_of(group: object = None) -> str:
            found = group or _distributed_c10d._get_default_group()
            return "cpu" if isinstance(found, group_of) else original(group)

        return device_of

    patch_list.device_of_objects.wrap(wrapper)


def _gather_into(input: torch.Tensor, group_size: int, group_name: Any, *, out: torch.Tensor) -> torch.Tensor:
    group = group_name if isinstance(group_name, ProcessGroup) else _c10d._resolve_process_group(group_name)
    torch.distributed.all_gather_into_tensor(out, input, group)
    return out


@functools.cache
def give_gather_results() -> torch.library.Library:
    """Let the functional collective `all_gather_into_tensor_out`, which asks for a backend in C++, ask the group."""
    library = torch.library.Library("_c10d_functional", "IMPL")
    library.impl("all_gather_into_tensor_out", _gather_into, "PrivateUse1")
    return library


_implementations: list[torch.library.Library] = []


def implement(operators: dict[str, Callable[..., object]]) -> None:
    """Implement operators of `torch.distributed` for tensors on `xla`, once. A group in Python does not come to them.

    PyTorch's own ask for a backend in C++, and it warns when they are replaced.
    """
    if not _implementations:
        library = torch.library.Library("c10d", "IMPL")
        _implementations.append(library)
        put = quiet()(library.impl)
        for name, implementation in operators.items():
            put(name, implementation, "PrivateUse1")


def let_gloo_take(device: str) -> None:
    """Name Gloo as a backend of a device type, as it is of "cuda", in groups that are made for all that it takes."""
    taken = Backend.backend_capability[Backend.GLOO]
    if device not in taken:
        taken.append(device)


def operator(name: str) -> torch._ops.OpOverload:
    """Return an operator of `torch.distributed`, which groups written in C++ call."""
    return getattr(torch.ops.c10d, name).default


def signature(operator: torch._ops.OpOverload) -> tuple[list[str], bool]:
    """Return the names of an operator's arguments, and whether it returns tensors beside its work."""
    schema = operator._schema
    return [argument.name for argument in schema.arguments], len(schema.returns) == 2


def group_of(given: torch.ScriptObject) -> _c10d.ProcessGroup:
    """Return the group that an operator of `torch.distributed` was given."""
    return _c10d.ProcessGroup.unbox(given)


def work_of(returned: torch.ScriptObject) -> _c10d.Work:
    """Return the work that an operator of `torch.distributed` returned."""
    return _c10d.Work.unbox(returned)


def future_of(work: Any) -> Any:
    """Return the future with which a work ends, or None where there is none: of exchanges by Gloo."""
    try:
        return work.get_future()
    except RuntimeError:
        return None


class HostWork(Work):  # type: ignore[misc]
    """A work on the host's memory, and a future that ends with what follows it. Waiting raises their errors.

    A work that PyTorch makes of a future waits without raising, and tells no sender.
    """

    # C++ may be the only owner, and would lose these methods. Who launches a work waits for it, or takes its future.
    _unwaited: ClassVar[set["HostWork"]] = set()

    def __init__(self, work: Work, future: "torch.futures.Future[list[torch.Tensor]]") -> None:
        super().__init__()
        self._work, self._future = work, future
        self._unwaited.add(self)

    def wait(self, timeout: object = None) -> bool:
        """Wait until all has ended. The group's timeout limits how long."""
        self._unwaited.discard(self)
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """Return whether all has ended."""
        return bool(self._future.done())

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        """Return the future."""
        self._unwaited.discard(self)
        return self._future

    def _source_rank(self) -> int:
        return int(self._work._source_rank())


def has_gloo() -> bool:
    """Return whether this PyTorch has a group for tensors in host memory."""
    return torch.distributed.is_gloo_available()


def reduces_unlike_gloo(options: object) -> bool:
    """Return whether these are the options of a collective whose reduction Gloo does not have."""
    reduction = getattr(options, "reduceOp", None)
    return str(getattr(reduction, "op", reduction)).endswith(("AVG", "PREMUL_SUM"))


def gloo(store: object, rank: int, size: int, timeout: object, address: str) -> object:
    """Return PyTorch's group of processes for tensors in the host's memory, listening on `address`, or where it finds
    best.
    """
    kind: Any = _c10d.ProcessGroupGloo
    options = kind._Options()
    options._timeout = timeout
    options._devices = [kind.create_device(hostname=address) if address else kind.create_default_device()]
    return kind(store, rank, size, options)


def set_timeout(group: object, timeout: object) -> None:
    """Set how long the collectives of a group of `gloo` wait."""
    group._set_default_timeout(timeout)  # type: ignore[attr-defined]


class _OfProcesses(str):
    """The name of a device type that says it is not "xla" where PyTorch asks.

    For a mesh of "xla" devices PyTorch makes no process groups and hands distributed tensors over to SPMD.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other is self

    def __ne__(self, other: object) -> bool:
        return other is not self

    __hash__ = str.__hash__


def give_meshes_groups(
    wanted: Callable[[], bool],
    divides: Callable[[], Sequence[int]],
    move: Callable[..., None],
    drawing: Callable[[int, torch.Generator | None], AbstractContextManager[None]],
) -> None:
    """Give a mesh of `xla` devices process groups and coordinates like any other, while `wanted()`.

    From then on `fully_shard` moves what a module has in other memory by `move(tensor, to_device)`, and distributed
    tensors draw their parts in blocks `drawing(first, generator)`: what number of the tensor's the part begins with.
    Otherwise it has coordinates alone: those of the first of the devices of this process, which `divides()` gives.
    """
    original, original_rank, original_group = DeviceMesh.__init__, _device_mesh.get_rank, DeviceMesh.get_group

    def make(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type != "xla":
            return original(self, device_type, *args, **kwargs)
        if wanted():
            _divide_linear()
            _move_what_is_sharded(move)
            _draw_in(drawing)
            original(self, _OfProcesses(device_type), *args, **kwargs)
        else:
            divides()
            original(self, device_type, *args, **kwargs)
            self._dim_group_names = []
            self._rank = _device_mesh.get_rank()
            self._coordinate_on_dim = self._compute_coordinate_on_dim()
        self._device_type = device_type
        return None

    # A part of a mesh is found by the rank of who asks for it.
    def get_rank(group: object = None) -> int:
        if group is None and not _distributed_c10d.is_initialized() and not wanted():
            return divides()[0]
        return original_rank(group)

    def get_group(self: DeviceMesh, mesh_dim: int | str | None = None) -> object:
        if self._device_type == "xla" and not wanted():
            raise RuntimeError(
                "DeviceMesh.get_group(): a mesh of xla devices has process groups where each device has a process of "
                "its own. Here one process drives several, and XLA has them exchange what tensors need: use "
                "placements, and redistribute()."
            )
        return original_group(self, mesh_dim)

    def get_local_rank(self: Any, mesh_dim: int | str | None = None) -> int:
        if self._device_type == "xla" and not wanted() and (mesh_dim is not None or self.ndim == 1):
            axis = self._get_mesh_dim_by_name(mesh_dim) if isinstance(mesh_dim, str) else mesh_dim or 0
            return int(self.get_coordinate()[axis])
        return original_local_rank(self, mesh_dim)

    original_local_rank = DeviceMesh.get_local_rank
    patch_list.mesh_rank.put(get_rank)
    patch_list.mesh_group.put(get_group)
    patch_list.mesh_local_rank.put(get_local_rank)
    patch_list.mesh_init.put(make)


def root_of(mesh: DeviceMesh) -> DeviceMesh:
    """Return the root mesh, which `mesh` is a part or another form of."""
    return mesh._get_root_mesh()


def current_mesh() -> DeviceMesh:
    """Return the mesh of the innermost `with mesh:`."""
    return _device_mesh._mesh_resources.get_current_mesh()


def give_constructors(wanted: Callable[[Any], bool], make: Callable[..., object]) -> None:
    """Let `torch.distributed.tensor.zeros` and the others call `make(function, size, mesh, placements, **options)`.

    For meshes that are `wanted`.
    """

    def wrapper(original: Callable[..., object]) -> Callable[..., object]:
        def helper(
            function: object, size: object, device_mesh: object = None, placements: object = None, **options: object
        ) -> object:
            mesh = device_mesh or current_mesh()
            return (make if wanted(mesh) else original)(function, size, mesh, placements, **options)

        return helper

    importlib.import_module("torch.distributed.tensor._api")
    patch_list.dtensor_constructor.wrap(wrapper)


@functools.cache
def _move_what_is_sharded(move: Callable[..., None]) -> None:
    """Replace how `fully_shard` moves parameters: by `tensor.data = ...`, which PyTorch refuses between memory kinds.

    Called when the first mesh is made, because the module takes a while to import.
    """

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def move_states(params: list[torch.Tensor], buffers: list[torch.Tensor], device: torch.device) -> None:
            if device.type == "xla":
                for tensor in (*params, *buffers):
                    if type(tensor) in (torch.nn.Parameter, torch.Tensor) and tensor.device.type not in ("xla", "meta"):
                        move(tensor, lambda given: given.to(device))
            original(params, buffers, device)

        return move_states

    importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_init")
    patch_list.move_states.wrap(wrapper)


@functools.cache
def _draw_in(drawing: Callable[[int, torch.Generator | None], AbstractContextManager[None]]) -> None:
    """Step the first word of the random state: PyTorch counts in the second, which is how CUDA draws."""

    def wrapper(original: Callable[..., AbstractContextManager[None]]) -> Callable[..., object]:
        def region(self: Any, spec: object, generator: torch.Generator | None = None) -> AbstractContextManager[None]:
            if self._device.type != "xla":
                return original(self, spec, generator)  # type: ignore[no-any-return]
            counted = SimpleNamespace(offset=0)
            self._set_pre_op_offset(counted, spec)
            return drawing(int(counted.offset), generator)

        return region

    importlib.import_module("torch.distributed.tensor._random")
    patch_list.region_of_draws.wrap(wrapper)


@functools.cache
def _divide_linear() -> None:
    """Let distributed tensors compute `linear` and its gradient as products, for which they know what to exchange.

    So PyTorch composes it for other devices; here it is one operator, which would gather weights that are divided. The
    module is found here for the same reason as above.
    """
    handlers = importlib.import_module("torch.distributed.tensor").DTensor._op_dispatcher._custom_op_handlers
    handlers[torch.ops.aten.linear.default] = lambda operator, args, kwargs: operator.decompose(*args, **kwargs)
    handlers[torch.ops.aten.linear_backward.default] = _gradients_of_linear


def _gradients_of_linear(operator: object, args: tuple[Any, ...], kwargs: object) -> list[torch.Tensor | None]:
    input, gradient, weight, wanted = args
    rows = _rows(gradient)
    return [
        gradient @ weight if wanted[0] else None,
        rows.t() @ _rows(input) if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    ]


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    # A product of sizes: PyTorch finds what `-1` means by a division, and tracing one of symbols does not end.
    return tensor.flatten(0, -2) if tensor.dim() > 1 else tensor.unsqueeze(0)


def give_data_parallel(make: Callable[..., object], watching: Any) -> None:
    """Make `DistributedDataParallel` use `make` for its reducer, and give hooks to those of the class `watching`.

    PyTorch's C++ compression hook does not accept the works of a Python process group, so its Python hook is used
    instead.
    """
    by_python = torch.distributed._register_comm_hook  # type: ignore[attr-defined]
    by_name = torch.distributed._register_builtin_comm_hook  # type: ignore[attr-defined]

    def register(reducer: Any, state: object, hook: object) -> None:
        if not (isinstance(reducer, watching) and reducer.call(state, hook)):
            by_python(reducer, state, hook)

    def register_builtin(reducer: Any, kind: _c10d.BuiltinCommHookType) -> None:
        if not isinstance(reducer, watching):
            return by_name(reducer, kind)
        hooks: Any = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
        is_narrow = kind == _c10d.BuiltinCommHookType.FP16_COMPRESS
        return register(reducer, reducer.group, hooks.fp16_compress_hook if is_narrow else hooks.allreduce_hook)

    patch_list.reducer.put(make)
    patch_list.hook_of_reducer.put(register)
    patch_list.builtin_hook_of_reducer.put(register_builtin)


def give_batches_end(group_of: type, together: Callable[[], AbstractContextManager[None]]) -> None:
    """Let `batch_isend_irecv` on a group of the class `group_of` call its operations inside `together()`."""
    original = _distributed_c10d.batch_isend_irecv

    @functools.wraps(original)
    def batch(p2p_op_list: list[Any]) -> list[_c10d.Work]:
        groups = [op.group or _distributed_c10d._get_default_group() for op in p2p_op_list]
        if not groups or not all(isinstance(group, group_of) for group in groups):
            return original(p2p_op_list)
        with together():
            return original(p2p_op_list)

    patch_list.batch_isend_irecv.put(batch)


def distributed(name: str, of: object, mesh: Any, *args: object) -> object:
    """Return the function `name` of `torch.distributed.tensor`, called as for meshes of other devices.

    Its module is found here: it takes half a second to import, and who is here came from it.
    """
    distribute = getattr(importlib.import_module("torch.distributed.tensor"), name)
    kept = mesh._device_type
    mesh._device_type = _OfProcesses(kept)
    try:
        return distribute(of, mesh, *args)
    finally:
        mesh._device_type = kept
