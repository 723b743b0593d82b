"""Where the tensors of a rank lie in the logical tensors that several ranks hold together."""
