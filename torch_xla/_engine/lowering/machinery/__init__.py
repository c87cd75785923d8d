"""The base of all lowering rules: the table of rules, type promotion, dimensions, precision and shardings."""
