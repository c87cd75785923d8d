"""Plans: what a step needs of memory, computing and communication, read from XLA's compiled programs."""
