"""The settings in force that change how something is lowered: ours, and those of JAX in this thread."""

from dataclasses import dataclass

from .. import compiler_options, config, dtypes, precision
from ..compat.names import jax as private
from ..compat.names.torch import product_precision


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """The settings in force at one time. Equal ones are one object: programs are looked up by it in every step."""

    dtypes: str  # the mode of dtypes: what `dtypes.on_device` does
    precision: str  # of products of 32-bit floats, if the user set it
    options: str  # of the compiler, the user's
    jax: tuple[tuple[str, object], ...]  # JAX's settings by name: all that change what JAX traces, and have a value

    def texts(self) -> dict[str, str]:
        """Return each setting by its name, in words that another process would use too."""
        ours = {"dtypes": self.dtypes, "precision": self.precision, "options": self.options}
        return ours | {name: str(value) for name, value in self.jax}


# Every combination that was in force. They are few: what changes is a user's choice.
_known: dict[tuple[object, ...], Settings] = {}
# The values read last, and the settings made of them.
_latest: tuple[tuple[object, ...], Settings | None] = ((), None)


def now() -> Settings:
    """Return the settings in force in this thread."""
    global _latest
    narrows = config.is_set(config.USE_BF16) or config.is_set(config.DOWNCAST_BF16)
    read = (
        dtypes.mode() if narrows else "",
        compiler_options.text,
        precision.chosen,
        product_precision(*precision.OF_TORCH),
        private.trace_context(),
    )
    before, settings = _latest
    if settings is None or read != before:
        fields = (read[0], precision.asked_for(), read[1], private.trace_settings(read[4]))
        settings = _known.setdefault(fields, Settings(*fields))
        _latest = read, settings
    return settings
