"""Training on several processes and devices, and loaders that upload batches in the background."""
