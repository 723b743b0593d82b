"""What `statagent.watch` attaches to a model and its optimizers."""
