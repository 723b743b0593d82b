"""Rows of a model's tensors, each under the key of its token: what two programs that compute the same tokens have in common."""
