"""Callbacks for training frameworks, a module each: transformers, lightning, jax. Each needs its framework and says so if it is missing."""
