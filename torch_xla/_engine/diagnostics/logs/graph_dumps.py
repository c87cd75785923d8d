"""`XLA_SAVE_TENSORS_FILE`: append every graph that runs to a file."""

from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from ... import config
from ...compile import program_text
from ...compile.program import Program
from ...ir.graph_text import digest, root_digests, to_dot, to_text
from ...lowering.machinery.jax_sharding import from_jax
from ...metrics import events
from ...metrics.events import Execution
from ...metrics.user_lines import Line
from ...processes import identity
from ...sharding import op_shardings
from . import stack_places

FORMATS = ("text", "dot", "hlo", "stablehlo")


class Dumps:
    """Listens to the engine and appends each graph that runs to a file."""

    def __init__(self, file: str, language: str, optimized: bool, lines: bool) -> None:
        if language not in FORMATS:
            raise ValueError(f"XLA_SAVE_TENSORS_FMT is {language!r}; it must be one of {', '.join(FORMATS)}")
        self.settings = (file, language, optimized, lines)
        self._file = Path(f"{file}.{identity.replica_index()}")
        self._language = language
        self._optimized = optimized
        self._lines = lines
        self._written: WeakKeyDictionary[Program, str] = WeakKeyDictionary()  # languages that take a lowering

    def hear(self, event: object) -> None:
        """Append the graph of an execution."""
        if isinstance(event, Execution):
            with self._file.open("a") as file:
                file.write(self._dump(event.program, event.numbers, stack_places.here().frames))

    def _dump(self, program: Program, numbers: Sequence[float | int], frames: Sequence[Line]) -> str:
        graph = program.graph
        parts = ["[ScheduleSyncTensorsGraph]\n", "TensorsGraphInfo:\n"]
        parts += [f"  {stack_places.text(line)}\n" for line in frames]
        roots = ", ".join(each.hex() for each in root_digests(graph))
        parts += [f"\nRoot Hashes: ({roots})\n", "\n## BEGIN_GRAPH\n", self._graph(program, numbers)]
        if self._language == "hlo":
            shardings = [f"{each}\n" for each in _output_shardings(program, numbers)]
            parts += ["#OUTPUT_SHARDING_BEGIN\n", *shardings, "#OUTPUT_SHARDING_END\n"]
        parts += [f"\nGraph Hash: {digest(graph).hex()}\n", "\n## END_GRAPH\n\n"]
        return "".join(parts)

    def _graph(self, program: Program, numbers: Sequence[float | int]) -> str:
        if self._language == "text":
            shown = (program.origins.lines, program.origins.scopes) if self._lines else ()
            return to_text(program.graph, numbers, *shown)
        if self._language == "dot":
            return to_dot(program.graph, numbers)
        text = self._written.get(program)
        if text is None:
            text = self._written[program] = self._lowered(program, numbers)
        return text

    def _lowered(self, program: Program, numbers: Sequence[float | int]) -> str:
        if self._language == "stablehlo":
            return program_text.stablehlo(program.lowered(numbers))
        return program.optimized(numbers) if self._optimized else program_text.hlo(program.lowered(numbers))


def _output_shardings(program: Program, numbers: Sequence[float | int]) -> list[str]:
    """Return how each output of a program lies on the devices, as XLA writes it."""
    outputs = [program.graph.specs[slot] for slot in program.graph.outputs]
    if not program.target.is_spread:
        return ["{replicated}"] * len(outputs)
    return [
        str(op_shardings.described(from_jax(placed, spec.size, program.target), len(spec.size), program.target))
        for placed, spec in zip(program.placed(numbers), outputs, strict=True)
    ]


_running: Dumps | None = None


def apply_settings() -> None:
    """Start the listener if the settings ask for it, else stop it."""
    global _running
    file = config.save_tensors_file()
    lines = config.ir_debug() or config.hlo_debug()
    wanted = (file, config.save_tensors_format(), config.dump_post_optimizations(), lines) if file else None
    if wanted == (_running.settings if _running is not None else None):
        return
    if _running is not None:
        events.unlisten(_running.hear)
    _running = Dumps(*wanted) if wanted is not None else None
    if _running is not None:
        events.listen(_running.hear)
