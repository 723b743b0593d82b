"""Support for torch.compile: hooks that are traced into graphs, and the operators that they leave there."""
