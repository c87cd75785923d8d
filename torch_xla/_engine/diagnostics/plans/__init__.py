"""Plans: what a step needs of memory, computing and communication, told from what XLA made of it."""
