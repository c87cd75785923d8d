"""Tools that show what the `xla` device did."""
