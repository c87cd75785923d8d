"""Export models as StableHLO, save and load them, and call them, also from other processes and languages.

A model exported by `torch.export` becomes functions in StableHLO and a set of weights. A saved model needs neither the
model's source nor PyTorch: each `functions/*.bytecode` is a portable artifact for any reader of StableHLO, `data/`
holds the weights as NumPy files, and `load.py` calls the model with JAX alone.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram

from ._engine import export
from ._engine.compat import removed_names
from ._engine.export import InputLocation as InputLocation
from ._engine.export import StableHLOFunc as StableHLOFunc
from ._engine.export import StableHLOFunctionMeta as StableHLOFunctionMeta
from ._engine.export import StableHLOJSONSerializer as StableHLOJSONSerializer
from ._engine.export import StableHLOModelBundle as StableHLOModelBundle
from ._engine.export import VariableSignature as VariableSignature
from ._engine.export import VariableType as VariableType
from ._engine.export import stablehlo_obj_hook as stablehlo_obj_hook

__getattr__ = removed_names.asked_of(__name__)


@dataclass
class StableHLOExportOptions:
    """Options of an export.

    `include_human_readable_text` saves the text of each function too. `override_tracing_arguments` and
    `override_tracing_kwargs` are example arguments for `save_torch_model_as_stablehlo`; a program that `torch.export`
    has
    already traced keeps its own arguments, including dynamic dimensions. `save_weights=False` leaves the weights out of
    the saved files, `export_weights=False` out of the bundle too. With `inline_all_constant`, the model's constants are
    constants of the program; otherwise they are arguments. `custom_ops_allowed_in_graph` names operators or namespaces:
    those without a lowering rule become custom calls with the operator's name. `export_node_metadata` writes the lines
    of
    the model's source into the text. `platforms` (such as `("cpu", "cuda", "tpu")`) lists the platforms that can run
    the
    program; the default is the platform of this process. `stablehlo_version` (such as `"1.13.0"`) is the version of the
    artifacts; the default is the oldest version that can express the program, so that the most readers accept it.
    """

    include_human_readable_text: bool = True
    override_tracing_arguments: tuple[Any, ...] | None = None
    override_tracing_kwargs: dict[str, Any] | None = None
    save_weights: bool = True
    inline_all_constant: bool = True
    export_weights: bool = True
    custom_ops_allowed_in_graph: set[str] = field(default_factory=set)
    export_node_metadata: bool = False
    platforms: tuple[str, ...] = ()
    stablehlo_version: str | None = None


class StableHLOGraphModule:
    """An exported model. Call it with tensors, nested as the model takes them; the results are on `xla`.

    Buffers that the model writes to keep their values from call to call, and are saved.

    >>> import torch
    >>> from torch_xla.stablehlo import exported_program_to_stablehlo
    >>> model = torch.nn.Softplus()
    >>> program = exported_program_to_stablehlo(torch.export.export(model, (torch.ones(2),)))
    >>> program(torch.zeros(2))
    tensor([0.6931, 0.6931], device='xla:0')
    >>> "stablehlo" in program.get_stablehlo_text()
    True
    """

    def __init__(self, bundle: StableHLOModelBundle) -> None:
        self._bundle = bundle
        self._model = export.ExportedModel(bundle)

    def evaluate(self, method_name: str, args: Any) -> Any:
        """Return the result of the function `method_name` for the positional arguments `args`."""
        return self._model.call(method_name, args, {})

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Return the result of the only function. Raises `ValueError` for other structures, sizes or dtypes."""
        return self._model.call(None, args, kwargs)

    def get_stablehlo_bytecode(self, method_name: str | None = None, stablehlo_version: str | None = None) -> bytes:
        """Return the portable artifact of a function: StableHLO in one version, which later readers accept too.

        The version is `stablehlo_version`, by default that in which the program was exported or loaded. Raises
        `ValueError` for a version that does not exist or cannot express the program.
        """
        artifact = self._model.function(method_name).bytecode
        return artifact if stablehlo_version is None else export.rewritten_for_version(artifact, stablehlo_version)

    def get_stablehlo_text(self, method_name: str | None = None) -> str:
        """Return the StableHLO text of a function."""
        return self._model.function(method_name).text or ""

    def save(self, directory_path: str | os.PathLike[str], options: StableHLOExportOptions | None = None) -> None:
        """Write functions, constants and weights below the directory `directory_path`, and create it if needed."""
        options = options or StableHLOExportOptions()
        bundle = export.bundle_in_version(self._model.settled(), options.stablehlo_version)
        export.save_bundle(bundle, directory_path, options.save_weights, options.include_human_readable_text)

    @classmethod
    def load(cls, directory_path: str | os.PathLike[str]) -> "StableHLOGraphModule":
        """Load a model that `save` wrote. Raises `FileNotFoundError` if the directory holds no exported model."""
        return cls(export.load_bundle(directory_path))


def exported_program_to_stablehlo(
    exported_model: ExportedProgram, options: StableHLOExportOptions | None = None
) -> StableHLOGraphModule:
    """Convert an exported program to StableHLO. Dynamic dimensions (`torch.export.Dim`) stay dynamic, from size 1 on.

    Raises `NotImplementedError` with the names of the operators that have no lowering rule.

    >>> import torch
    >>> from torch_xla.stablehlo import exported_program_to_stablehlo
    >>> batch = torch.export.Dim("batch")
    >>> exported = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),), dynamic_shapes=({0: batch},))
    >>> program = exported_program_to_stablehlo(exported)
    >>> program(torch.ones(5, 4)).shape
    torch.Size([5, 2])
    """
    options = options or StableHLOExportOptions()
    chosen = export.ExportOptions(
        inline_constants=options.inline_all_constant,
        export_weights=options.export_weights,
        foreign_operators=frozenset(options.custom_ops_allowed_in_graph),
        with_lines=options.export_node_metadata,
        platforms=tuple(options.platforms),
        stablehlo_version=options.stablehlo_version,
    )
    return StableHLOGraphModule(export.convert_program(exported_model, chosen))


def save_as_stablehlo(
    exported_model: ExportedProgram,
    stablehlo_dir: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """Export a program and save it below `stablehlo_dir`; see `StableHLOGraphModule.save`."""
    exported_program_to_stablehlo(exported_model, options).save(stablehlo_dir, options)


def save_torch_model_as_stablehlo(
    torchmodel: torch.nn.Module,
    args: tuple[object, ...],
    path: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """Export a module as it runs for the arguments `args`, and save it below `path`.

    >>> import tempfile, torch
    >>> from torch_xla.stablehlo import StableHLOGraphModule, save_torch_model_as_stablehlo
    >>> directory = tempfile.mkdtemp()
    >>> save_torch_model_as_stablehlo(torch.nn.ReLU(), (torch.ones(2),), directory)
    >>> StableHLOGraphModule.load(directory)(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.], device='xla:0')
    """
    options = options or StableHLOExportOptions()
    args = options.override_tracing_arguments or args
    exported = torch.export.export(torchmodel, tuple(args), dict(options.override_tracing_kwargs or {}))
    save_as_stablehlo(exported, path, options)


def stablehlo_function(module: str | bytes) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a module of StableHLO (text, bytecode or portable artifact) as a function of tensors.

    The function runs the module's `main`, or the only public function of a text; its shapes must be static. It takes
    one tensor for each argument and returns a tuple of tensors on `xla`. Modules written by torch-mlir are accepted
    too, with operations of CHLO, constants of `arith` and weights after the module (`dense_resource`). Raises
    `ValueError` for any other module, with the operation and its line. The function raises `ValueError` for tensors of
    other sizes or dtypes.

    >>> import torch
    >>> from torch_xla.stablehlo import stablehlo_function
    >>> double = stablehlo_function('''
    ...     func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    ...       %y = stablehlo.add %x, %x : tensor<2xf32>
    ...       return %y : tensor<2xf32>
    ...     }''')
    >>> double(torch.ones(2))
    (tensor([2., 2.], device='xla:0'),)
    """
    return export.function_of_module(module)


def _run_decompositions(exported_model: ExportedProgram) -> ExportedProgram:
    """Decompose the program to PyTorch's core operators."""
    return exported_model.run_decompositions()
