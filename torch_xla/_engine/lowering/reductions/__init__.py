"""Rules of operators that make one number of many: sums, cumulative sums, softmax, distances, segments."""
