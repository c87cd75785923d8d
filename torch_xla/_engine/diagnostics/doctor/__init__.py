"""What stands in the way of the `xla` device on this machine, and what to do about each."""
