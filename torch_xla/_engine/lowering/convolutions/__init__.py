"""Rules of convolutions and pooling."""
