"""One small GPT under every layout that runs on CPU: plain, data parallel, sharded, tensor and pipeline parallel; and planted layout bugs.

python -m layouts --help          # in tests/e2e, with PYTHONPATH=.:../../agent/python
"""
