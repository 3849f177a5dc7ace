"""Benchmarks: runners that print figures and keep them as data under `results`, and the tables made from these.

python -m benchmarks.demo        GPT-2 small for an H200: totals against budgets, and JAX's own policies
python -m benchmarks.numerics    a planned step against the step: equal bits, equal loss curves
python -m benchmarks.frontier    every model of the zoo of planners: plans against policies written by hand
python -m benchmarks.partitioner   GPT-2 against PyTorch's partitioner: FLOPs again where the same bytes are kept
python -m benchmarks.frontier_tables   tables and pictures of both in docs/
python -m benchmarks.strangers   plans against simple rules, on steps that none of our models is
python -m benchmarks.gallery     memory problems of public threads: as written, as advised, planned
python -m benchmarks.scheduler   XLA's options for order and memory: compiled totals
python -m benchmarks.dtr_logs    DTR's own logs, by its simulator and by ours
python -m benchmarks.checkmate   Checkmate on the networks of its paper, against the optimal solver
python -m benchmarks.tables      README.md's tables from the results
python -m benchmarks.constants   each tuning constant against a smaller and a larger value
"""
