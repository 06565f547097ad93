"""What is measured: each workload is a function of a `Stage`.

The peer has another package of the name `infinite_tensor`, in an environment of its own. So this package imports
nothing of the repository but its own modules, and those by relative imports: workers run it as `workloads`, from the
folder of the benchmarks.
"""
