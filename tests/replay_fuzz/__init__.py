"""Random functions, composed of inputs, changes and results, replayed and compared with the CPU."""
