"""Export models as SavedModels of TensorFlow. TensorFlow must be installed.

Without it every function here raises `ImportError`; `torch_xla.stablehlo` saves models that need no TensorFlow.
"""

import argparse
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch

from . import stablehlo
from ._engine import export


def make_tf_function(
    stablehlo_program: stablehlo.StableHLOGraphModule, bundle: Any = None, stablehlo_version: str | None = None
) -> Callable[..., Any]:
    """Return the program's only function as a function of a flat list of TensorFlow's tensors that returns a list.

    `bundle` replaces the program's weights and constants by arrays or variables of TensorFlow. The program is written
    in the oldest version of StableHLO that can express it, or in `stablehlo_version`. TensorFlow loads a program of a
    version later than its own, but cannot run it. Raises `NotImplementedError` for a program that TensorFlow cannot
    run: one that writes to its buffers, or calls functions of LAPACK.
    """
    tf = _tensorflow()
    bundle = bundle or stablehlo_program._bundle
    function = bundle.stablehlo_funcs[0]
    meta = function.meta
    if meta.written_buffers:
        raise NotImplementedError(
            f"the model writes to its buffers {meta.written_buffers}, which a function of TensorFlow cannot; export it "
            f"in evaluation mode"
        )
    if called := export.libraries_called(function.bytecode):
        raise NotImplementedError(
            f"the model calls {', '.join(called)}, which JAX has and TensorFlow lacks; compute it outside the model"
        )
    is_dynamic = any(n < 0 for each in meta.input_signature for n in each.shape)
    artifact = export.with_calls(function.bytecode) if is_dynamic else function.bytecode
    module = export.rewritten_for_version(artifact, stablehlo_version)
    types = [tf.as_dtype(each.dtype) for each in meta.output_signature]
    sizes = [[None if n < 0 else n for n in each.shape] for each in meta.output_signature]

    def of_tensors(*args: object) -> Any:
        given = []
        for place in meta.input_locations:
            if place.type_ is stablehlo.VariableType.PARAMETER:
                given.append(bundle.state_dict[place.name])
            elif place.type_ is stablehlo.VariableType.CONSTANT:
                given.append(bundle.additional_constants[place.position])
            else:
                given.append(args[place.position])
        return importlib.import_module("tensorflow.compiler.tf2xla.python.xla").call_module(
            given,
            version=meta.calling_convention_version or 9,
            Tout=types,
            Sout=sizes,
            function_list=[],
            module=module,
            platforms=[each.upper() for each in meta.platforms],
        )

    return of_tensors


def save_stablehlo_graph_as_tf(
    stablehlo_program: stablehlo.StableHLOGraphModule,
    path: str | os.PathLike[str],
    serving_key: str = "serving_default",
    function_alias: str = "",
    stablehlo_version: str | None = None,
) -> None:
    """Write the program below `path` as a SavedModel with the signature `serving_key`.

    `function_alias` is a name under which converters find the function. Weights are variables of the SavedModel.
    `stablehlo_version` (such as `"1.13.0"`) is that of `make_tf_function`.
    """
    tf = _tensorflow()
    source = stablehlo_program._bundle
    meta = source.stablehlo_funcs[0].meta
    bundle = stablehlo.StableHLOModelBundle(
        {name: tf.Variable(value, trainable=False, name=name) for name, value in source.state_dict.items()},
        [tf.Variable(value, trainable=False) for value in source.additional_constants],
        source.stablehlo_funcs,
    )
    call = make_tf_function(stablehlo_program, bundle, stablehlo_version)
    places = zip(meta.input_locations, meta.input_signature, strict=True)
    inputs = [
        tf.TensorSpec(
            [None if n < 0 else n for n in each.shape], tf.as_dtype(each.dtype), name=f"args_{place.position}"
        )
        for place, each in places
        if place.type_ is stablehlo.VariableType.INPUT_ARG
    ]
    holder = tf.Module()
    holder.f = tf.function(call, autograph=False, input_signature=inputs)
    holder._variables = [*bundle.state_dict.values(), *bundle.additional_constants]
    options = tf.saved_model.SaveOptions(function_aliases={function_alias: holder.f} if function_alias else None)
    tf.saved_model.save(holder, str(path), signatures={serving_key: _named(tf, holder.f, inputs)}, options=options)


def save_torch_module_as_tf_saved_model(
    torch_model: torch.nn.Module,
    args: tuple[Any, ...],
    saved_model_dir: str | os.PathLike[str],
    dynamic_shapes: Any = None,
    serving_key: str = "serving_default",
    function_alias: str = "",
    stablehlo_version: str | None = None,
) -> None:
    """Export a module as it runs for `args` and save it as a SavedModel.

    `dynamic_shapes` is that of `torch.export.export`; the other arguments are those of `save_stablehlo_graph_as_tf`.
    """
    _tensorflow()
    exported = torch.export.export(torch_model, args, dynamic_shapes=dynamic_shapes)
    options = stablehlo.StableHLOExportOptions(inline_all_constant=False, stablehlo_version=stablehlo_version)
    program = stablehlo.exported_program_to_stablehlo(exported, options)
    save_stablehlo_graph_as_tf(program, saved_model_dir, serving_key, function_alias, stablehlo_version)


def main() -> None:
    """Run `python -m torch_xla.tf_saved_model_integration PROGRAM DIRECTORY`: convert a file of `torch.export.save`."""
    parser = argparse.ArgumentParser(description="an exported program of PyTorch as a SavedModel of TensorFlow")
    parser.add_argument("program", help="what torch.export.save wrote")
    parser.add_argument("directory", help="where the SavedModel goes")
    parser.add_argument("--stablehlo-version", help="such as 1.13.0; without it the oldest that holds the program")
    chosen = parser.parse_args()
    _tensorflow()
    program = stablehlo.exported_program_to_stablehlo(torch.export.load(chosen.program))
    save_stablehlo_graph_as_tf(program, chosen.directory, stablehlo_version=chosen.stablehlo_version)


def _named(tf: Any, function: Any, inputs: list[Any]) -> Any:
    """Return `function` as a signature whose results have names, which a SavedModel requires."""

    def serve(*args: Any) -> dict[str, Any]:
        return {f"output_{place}": each for place, each in enumerate(function(*args))}

    return tf.function(serve, autograph=False, input_signature=inputs)


def _tensorflow() -> Any:
    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError(
            "A SavedModel needs TensorFlow, which is not installed: `pip install tensorflow`. Without it, "
            "torch_xla.stablehlo.save_as_stablehlo() saves the model as StableHLO, which JAX and others read."
        )
    # LLVM of Triton ends the process where TensorFlow's is loaded already, and `torch.export` loads Triton.
    if importlib.util.find_spec("triton") is not None:
        importlib.import_module("triton")
    return importlib.import_module("tensorflow")


if __name__ == "__main__":
    main()
