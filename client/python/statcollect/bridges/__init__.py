"""Bridges from a collector's answers to people's other tools. Each needs a package of its own, which is imported when it is started."""
