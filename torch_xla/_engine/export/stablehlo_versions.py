"""Which version of StableHLO a portable artifact is written in: the oldest that holds the program, or one by name.

A reader takes artifacts of its own version and of older ones. So an old version reaches the most readers, such as
TensorFlow, whose StableHLO is older than JAX's.
"""

import re
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..compat.names import jax as private

# Changes of the format raise the second number. There was no version between 0.20 and 1.0.
_BEFORE_ONE = tuple((0, minor, 0) for minor in range(9, 21))


class NotHeld(ValueError):
    """Why a version of StableHLO cannot hold a program."""


def version_of(artifact: bytes) -> str:
    """Return the version of StableHLO that a portable artifact is written in, such as "1.14.0"."""
    found = re.search(rb"StableHLO_v([0-9.]+)", artifact[:64])
    return found[1].decode() if found else ""


def written(context: Any, module: Any, version: str) -> bytes:
    """Return a module of `context` as a portable artifact, its operations as they are. Raises `NotHeld` with the
    operation.
    """
    messages: list[str] = []

    def note(diagnostic: Any) -> bool:
        messages.append(f"{diagnostic.location}: {diagnostic.message}")
        return True  # not printed as well

    handler = context.attach_diagnostic_handler(note)
    try:
        return bytes(stablehlo.serialize_portable_artifact(module, version))
    except ValueError as error:
        raise NotHeld(f"StableHLO {version} cannot hold {culprit(messages[0] if messages else str(error))}") from error
    finally:
        handler.detach()


def rewritten(artifact: bytes, version: str | None = None) -> bytes:
    """Return a portable artifact in the oldest version that holds its program, or in `version`.

    Raises `ValueError` for a version that there is not, and for one that does not hold the program.
    """
    if version is not None:
        _check(version)
    with private.module_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, artifact)
        if version is None:
            return _in_the_oldest(context, module, artifact)
        try:
            return written(context, module, version)
        except NotHeld as error:
            oldest = version_of(_in_the_oldest(context, module, artifact))
            raise ValueError(f"{error}. The oldest version that holds the program is {oldest}") from error


def with_calls(artifact: bytes) -> bytes:
    """Replace the composites of CHLO (`chlo.erf`) in a portable artifact by calls of their functions.

    TensorFlow infers sizes inside called functions, but not inside functions that a composite names.
    """
    if b"chlo." not in artifact:
        return artifact
    with private.module_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, artifact)
        found: list[Any] = []

        def note(op: ir.Operation) -> ir.WalkResult:
            if op.name == "stablehlo.composite" and ir.StringAttr(op.attributes["name"]).value.startswith("chlo."):
                found.append(op)
            return ir.WalkResult.ADVANCE

        private.walk(module, note)
        for op in found:
            call = ir.Operation.create(
                "func.call", [each.type for each in op.results], list(op.operands),
                {"callee": op.attributes["decomposition"]}, loc=op.location, ip=ir.InsertionPoint(op),
            )  # fmt: skip
            for old, new in zip(op.results, call.results, strict=True):
                old.replace_all_uses_with(new)
            op.erase()
        return written(context, module, version_of(artifact))


def libraries_called(artifact: bytes) -> list[str]:
    """Return each function of a library that a portable artifact calls, with the operator that it comes from.

    Only a process that has registered these functions can run the program.
    """
    found: dict[str, str] = {}
    with private.module_context() as context:

        def note(op: ir.Operation) -> ir.WalkResult:
            # Calls by XLA's newest interface alone have their options as a dictionary, under this name.
            if op.name == "stablehlo.custom_call" and "mhlo.backend_config" in op.attributes:
                target = ir.StringAttr(op.attributes["call_target_name"]).value
                operator = re.search(r"(\w+::\w+)", str(op.location))
                found.setdefault(target, f"{target} (of {operator[1]})" if operator else target)
            return ir.WalkResult.ADVANCE

        private.walk(stablehlo.deserialize_portable_artifact(context, artifact), note)
    return list(found.values())


def _in_the_oldest(context: object, module: object, artifact: bytes) -> bytes:
    newest = _numbers(version_of(artifact))
    known = [*_BEFORE_ONE, *((1, minor, 0) for minor in range(newest[1] + 1 if newest[0] == 1 else 0))]
    least = _numbers(stablehlo.get_minimum_version())
    candidates = [each for each in known if least <= each < newest]
    # A program that one version can express, all later versions can express.
    low, high, found = 0, len(candidates), artifact
    while low < high:
        middle = (low + high) // 2
        try:
            found = written(context, module, ".".join(map(str, candidates[middle])))
        except NotHeld:
            low = middle + 1
        else:
            high = middle
    return found


def _check(version: str) -> None:
    least, newest = stablehlo.get_minimum_version(), stablehlo.get_current_version()
    if not re.fullmatch(r"\d+\.\d+\.\d+", version) or not _numbers(least) <= _numbers(version) <= _numbers(newest):
        raise ValueError(
            f"stablehlo_version is {version!r}; expected a version from {least} to {newest}, or None for the oldest "
            "that holds the program"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def culprit(message: str) -> str:
    """Return the operation that MLIR complains of, its line in a text, and the operator of PyTorch that it comes
    from.
    """
    operation = re.search(r"operation '([\w.$]+)'", message)
    if operation is None:
        return f"the program: {message[:500]}"
    name = re.sub(r"^vhlo[.](.*?)(_v[0-9]+)?$", r"stablehlo.\1", operation[1])
    operator, line = re.search(r"(\w+::\w+)", message), re.search(r"(?:^|\s)-:(\d+):\d+: error", message)
    where = f" of {operator[1]}" if operator else ""
    return f"the operation {name!r}{where}" + (f" (line {line[1]})" if line else "")
