"""Random programs on `xla` against the CPU: `python -m tests.fuzz --help`.

`operators.py` writes random calls, `program.py` strings them together, `check.py` runs a program on both devices,
compares, and makes one that fails as short as it can.
"""
