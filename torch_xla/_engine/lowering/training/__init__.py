"""Rules of optimizers and of operators on lists of tensors."""
