"""Drop-in replacements of other tools' hooks: a script only changes its import line."""
