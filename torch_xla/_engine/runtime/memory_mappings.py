"""Count this process's memory mappings, and those of compiled code, against the limit of Linux.

On the CPU each function of a program takes three, the step of a small model some hundred. Where there are none left
(`vm.max_map_count`), LLVM has no memory for code, and the process ends.
"""

import sys
from pathlib import Path

_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_CODE = b" r-xp 00000000 00:00 0"  # of no file
_WITH_DATA = 3  # code, constants, variables
_OF_A_PROGRAM = 2000  # more than nearly all take

_unseen = 0  # the number of further programs before the next check


def are_scarce() -> bool:
    """Return whether more than half are in use, many of them by compiled code. Called before each compilation.

    It looks as often as the answer may have changed: reading the table takes some milliseconds when it is long.
    """
    global _unseen
    if _unseen:
        _unseen -= 1
        return False
    try:
        most, table = int(_LIMIT.read_text()), _MAPS.read_bytes()
    except (OSError, ValueError):  # another system: nothing is known of a limit
        _unseen = sys.maxsize
        return False
    used = table.count(b"\n")
    _unseen = max((most - used) // _OF_A_PROGRAM, 1)
    return used > most // 2 and _WITH_DATA * table.count(_CODE) > most // 4
