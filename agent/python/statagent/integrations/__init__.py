"""Callbacks for training frameworks: transformers, lightning and jax. Each module raises ImportError if its framework is missing."""
