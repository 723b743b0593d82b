"""Records trainings that do not call this package: `statctl run`. Python finds start/sitecustomize.py by PYTHONPATH."""
