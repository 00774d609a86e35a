"""Side-by-side measurements: problems × adapters, one process per run, equal threads, exact final errors.

`globular.benchmarking.run.run_benchmark` is the entry; `globular bench` calls it.
"""
