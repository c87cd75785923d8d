"""Rules of operators that make, cut, join, pad or reshape."""
