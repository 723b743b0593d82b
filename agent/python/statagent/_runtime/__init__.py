"""The agent of a process: what it records, counts and reports."""
