"""Reads torch: the state of autograd, and the names of modules, parameters and buffers."""
