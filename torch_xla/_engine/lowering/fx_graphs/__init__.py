"""FX graphs lowered by the rules of their operators, and operators that PyTorch breaks into smaller ones."""
