"""Published bugs of how parallelisms compose, each as a correct and a faulty run of one small training on 2 or 4 ranks.

python tests/e2e/published_bugs [--write-docs]
"""
