"""Why a program was compiled again: its difference from the one before, and who keeps results alive."""
