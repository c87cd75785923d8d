"""Rules of operators that draw numbers."""
