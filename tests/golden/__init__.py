"""What a dozen small programs are recorded and lowered to, as text: a change of lowering shows as a diff.

python -m tests.golden           # which texts differ, and how
python -m tests.golden --write   # writes them anew, after you have read the difference
"""
