"""What the rules share: the table of rules, type promotion, dimensions, precision, shardings; no family of
operators.
"""
