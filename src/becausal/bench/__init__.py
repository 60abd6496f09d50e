"""Benches: the experiments of the paper and others, each with rows, tables, figures and a page.

from becausal.bench import run
run("scenes", "bundled", methods="causal,rise", limit=20, out="run")
"""

from becausal.bench.execution import BenchProgress
from becausal.bench.results import BenchRun
from becausal.bench.runner import BENCHES, load_bench, run

__all__ = ["BENCHES", "BenchProgress", "BenchRun", "load_bench", "run"]
