"""PyTorch's operator database on `xla`, against the CPU: `python -m tests.opinfo --help`.

`entries.py` names what is checked, `check.py` checks one entry, `operands.py` moves its operands, `truth.py` calls it
in float64, and `compare.py` says when two results are the same. `sweep.py` runs many entries in processes of their own,
`report.py` tells of it, and `ledger.py` holds what does not pass yet, and why.
"""
