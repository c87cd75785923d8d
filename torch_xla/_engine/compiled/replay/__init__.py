"""Replay: watch a few calls of a step function, then run their program without calling the function."""
