"""What the package reads of torch: the state of autograd, and the names of modules, parameters and buffers."""
