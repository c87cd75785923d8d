"""The graphs and StableHLO of a dozen small programs as text: a change of lowering shows as a diff.

python -m tests.golden           # which texts differ, and how
python -m tests.golden --write   # writes them anew, after you have read the difference
"""
