"""The configuration that is stored with a run: the user's, the environment's and the checklist of model and optimizers."""
