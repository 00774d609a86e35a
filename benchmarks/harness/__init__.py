"""What the scripts beside it share: data by name, rivals' adapters, measured processes, exact errors, results.

Imports within are relative, so that it is `harness` to a script and `benchmarks.harness` to the experiments.
"""
