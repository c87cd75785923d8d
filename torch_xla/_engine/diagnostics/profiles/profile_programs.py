"""The programs in a profile: which operator and which line each of their operations comes from.

A profile is a file of protocol buffers, and keeps the HLO of every program that ran. JAX reads the events of such a
file but not these, so the few fields that are wanted are read here, by their numbers in `xplane.proto` and `hlo.proto`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ...metrics.user_lines import Line
from ...planning.protobuf_reader import Message, number_of, parsed, text_of


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an operation of a program comes from."""

    name: str  # scopes and operator, "forward/encoder/aten::linear"; empty if it is XLA's own
    line: Line | None
    opcode: str

    @property
    def operator(self) -> str:
        """The operator, without the blocks around it: "aten::linear"."""
        return self.name.rpartition("/")[2]

    @property
    def recorded(self) -> str:
        """The operator that was recorded: for one inside a compiled graph, the graph."""
        return next((part for part in self.name.split("/") if "::" in part), "")

    @property
    def modules_inside(self) -> list[str]:
        """The modules around an operator inside a compiled graph, outermost first."""
        parts = self.name.split("/")
        return parts[parts.index(self.recorded) + 1 : -1] if self.recorded else []

    @property
    def blocks(self) -> list[str]:
        """The modules and other blocks around what was recorded, when its program was compiled, outermost first."""
        parts = self.name.split("/")
        return parts[: parts.index(self.recorded)] if self.recorded else []


class ProfilePrograms:
    """The programs in a profile. Each is read when one of its operations ran: a process may hold thousands."""

    def __init__(self, content: bytes) -> None:
        self._modules = dict(_modules(content))
        self._read: dict[str, dict[str, Origin]] = {}

    def origins(self, module: str, number: str, names: Collection[str]) -> dict[str, Origin]:
        """Return the origin of each operation, by its name, of the program with operations of these names.

        Its title is "jit_program(7)" for the module "jit_program" and the number 7. On a CPU, XLA may number a copy in
        another way.
        """
        title = f"{module}({number})"
        if title in self._modules and all(name in self._origins(title) for name in names):
            return self._origins(title)
        # A program holds at most the names whose bytes occur in it: the most promising are read first.
        fields = [_field_of_text(name) for name in names]
        hopes = {
            title: sum(field in content for field in fields)
            for title, content in self._modules.items()
            if title.rpartition("(")[0] == module
        }
        best: dict[str, Origin] = {}
        most = 0
        for title in sorted(hopes, key=lambda title: -hopes[title]):
            if hopes[title] <= most:
                break
            found = sum(name in self._origins(title) for name in names)
            if found > most:
                best, most = self._origins(title), found
        return best

    def _origins(self, title: str) -> dict[str, Origin]:
        if title not in self._read:
            self._read[title] = _origins_of_module(parsed(self._modules[title]))
        return self._read[title]


def _modules(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Return the HLO of each program in a profile, and its title."""
    for plane in parsed(content).get(1, ()):
        fields = parsed(plane)
        if text_of(fields, 2) != "/host:metadata":
            continue
        for entry in fields.get(4, ()):
            program = parsed(parsed(entry)[2][0])
            for stat in program.get(5, ()):
                for proto in parsed(stat).get(6, ()):
                    yield text_of(program, 2), parsed(proto)[1][0]


def _field_of_text(text: str) -> bytes:
    """Return how a message keeps a text as its first field; without the length of a long one."""
    content = text.encode()
    return b"\x0a" + bytes([len(content)]) + content if len(content) < 128 else content


def _origins_of_module(module: Message) -> dict[str, Origin]:
    lines = _lines(parsed(module[17][0])) if 17 in module else {}
    found: dict[str, Origin] = {}
    for computation in module.get(3, ()):
        for each in parsed(computation).get(2, ()):
            instruction = parsed(each)
            metadata = parsed(instruction[7][0]) if 7 in instruction else {}
            line = lines.get(number_of(metadata, 15))
            if line is None and number_of(metadata, 4):
                line = (text_of(metadata, 3), number_of(metadata, 4), "")
            found[text_of(instruction, 1)] = Origin(_operator(text_of(metadata, 2)), line, text_of(instruction, 2))
    return found


def _operator(name: str) -> str:
    """Return "jit(program)/forward/aten::relu/jit(relu)/max" → "forward/aten::relu": up to the operator."""
    parts = name.split("/")
    last = max((index for index, part in enumerate(parts) if "::" in part), default=-1)
    return "/".join(parts[1 : last + 1])


def _lines(index: Message) -> dict[int, Line]:
    """Return the lines of the frames that programs refer to by number, from 1 on."""
    files, functions = ([name.decode() for name in index.get(field, ())] for field in (1, 2))
    places: list[Line] = []
    for each in index.get(3, ()):
        place = parsed(each)
        places.append((files[number_of(place, 1) - 1], number_of(place, 3), functions[number_of(place, 2) - 1]))
    frames = [number_of(parsed(frame), 1) for frame in index.get(4, ())]
    return {number: places[place - 1] for number, place in enumerate(frames, 1) if place}
