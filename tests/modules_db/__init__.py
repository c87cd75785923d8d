"""PyTorch's database of modules on `xla`, against the CPU: `python -m tests.modules_db --help`.

`entries.py` names what is checked, `check.py` checks one entry. How results are compared and entries are spread over
processes is the business of `tests/opinfo`.
"""
