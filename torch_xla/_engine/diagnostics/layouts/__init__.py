"""Search for layouts: how to divide the parameters and the batch of a program over a mesh."""
