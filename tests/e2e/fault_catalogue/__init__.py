"""Real training runs with planted faults, and where `statctl diff` must find each."""
