"""Rules of operators that compute each element alone: arithmetic, comparison, activations, special functions, casts."""
