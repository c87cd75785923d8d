"""PyTorch's operator database on `xla`, against the CPU: `python -m tests.opinfo --help`.

`entries.py` lists the entries, `check.py` checks one entry, `operands.py` moves its operands, `truth.py` calls it in
float64, and `compare.py` defines when two results are the same. `sweep.py` runs many entries in separate processes,
`report.py` prints the results, and `ledger.py` lists the entries that do not pass yet, with reasons.
"""
