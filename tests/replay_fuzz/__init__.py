"""Random functions, composed of what they see, change and return, replayed and compared with the CPU."""
