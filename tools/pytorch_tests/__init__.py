"""Runs PyTorch's own device-generic tests on `xla`, and the same tests on the CPU as the measure.

    python -m tools.pytorch_tests FOLDER                      # every file below, both devices
    python -m tools.pytorch_tests FOLDER test_view_ops -k flatten
    python -m tools.pytorch_tests FOLDER test_nn --every 20   # a twentieth of it, always the same
    python -m tools.pytorch_tests FOLDER --beside             # on the CPU, with this package imported and without
    python -m tools.pytorch_tests FOLDER --failed             # what failed on xla last time, again
    python -m tools.pytorch_tests FOLDER --write              # docs/pytorch_tests.md, from what was run

FOLDER is the `test` folder of PyTorch's sources, which no wheel holds. Debian has them: `apt-get source pytorch`.
"""
