"""Hooks and observers that `statagent.watch` attaches to a model and its optimizers."""
