"""Search for the best division of a program's parameters and batch over a mesh."""
