"""Interrupts at random times: whatever was going on, every tensor stays readable and the next step works."""
