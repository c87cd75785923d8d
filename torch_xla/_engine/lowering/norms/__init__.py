"""Rules of batch, layer, group and weight normalisation."""
