"""Random state: one int per device, which every draw advances on the host.

The states of a step's draws become one small array, an ordinary argument of the program: so no draw, no seed and no
number of draws that came before can make a program differ from the last one.
"""

import numpy as np

# Knuth's MMIX multiplier; modulo 2**63 so that a state is a non-negative int64 everywhere it is saved.
_MULTIPLIER = 6364136223846793005
_INCREMENT = 1442695040888963407
_MASK = (1 << 63) - 1
# Not the distance of a key's words, so that no word of one part's key is one of another's.
_BETWEEN_PARTS = 0xD1342543DE82EF95


class Generator:
    """The random state of a device."""

    __slots__ = ("initial_seed", "state")

    def __init__(self) -> None:
        self.initial_seed = 0
        self.state = 0

    def seed(self, seed: int) -> None:
        """Start the sequence that belongs to `seed`."""
        self.initial_seed = seed
        self.state = seed & _MASK

    def draw(self) -> int:
        """Return the state for one draw; the next draw gets another."""
        state = self.state
        self.state = (state * _MULTIPLIER + _INCREMENT) & _MASK
        return state


def state_of_part(state: int, first: int) -> int:
    """Return the state for one draw of a part of a tensor, which begins with number `first` of the tensor's."""
    return (state + first * _BETWEEN_PARTS) & _MASK


# The two words of a key are the state plus these.
_OFFSETS = 0x9E3779B97F4A7C15, 0x3C6EF372FE94F82A
_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1
_APART = np.array(_OFFSETS, dtype=np.uint64)
_FIRST, _SECOND = map(np.uint64, _FACTORS)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def keys_of(states: list[int]) -> np.ndarray:
    """Return the data of one 128-bit JAX key per state: uint32[n, 4]."""
    if len(states) == 1:
        return _key_of(states[0])
    words = np.array(states, dtype=np.uint64)[:, None] + _APART
    # splitmix64's finaliser: neighbouring states give unrelated keys.
    words = (words ^ (words >> _30)) * _FIRST
    words = (words ^ (words >> _27)) * _SECOND
    return (words ^ (words >> _31)).view(np.uint32)


def _key_of(state: int) -> np.ndarray:
    # The same in Python's numbers: for a single state eight calls of NumPy take ten times as long.
    first, second = _FACTORS
    words = []
    for offset in _OFFSETS:
        word = state + offset & _WORD
        word = (word ^ word >> 30) * first & _WORD
        word = (word ^ word >> 27) * second & _WORD
        words.append(word ^ word >> 31)
    return np.array([words], dtype=np.uint64).view(np.uint32)
