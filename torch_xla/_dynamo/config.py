"""Settings of the bridge to Dynamo, by the names of PyTorch/XLA 2."""

# Whether each call skips looking at where its inputs are. A graph is one recorded operation here, found by the kinds of
# its inputs as every other is: there is no such look that could be skipped, and either value does the same.
skip_input_data_check = False
