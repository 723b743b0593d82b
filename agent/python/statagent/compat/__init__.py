"""Packages that take the place of other tools' hooks: a script changes its import line and nothing else."""
