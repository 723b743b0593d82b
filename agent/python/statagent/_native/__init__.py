"""The C library: its structures and functions, tensors as it reads them, and one agent of it."""
