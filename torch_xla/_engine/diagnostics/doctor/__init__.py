"""The doctor: find what prevents the `xla` device from working on this machine, with a remedy for each."""
