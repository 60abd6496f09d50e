"""Benches: the experiments of the paper and others, each with rows, tables, figures and a page.

from becausal.lab.bench import run
run("scenes", "bundled", methods="causal,rise", limit=20, out="run")
"""

from becausal.lab.bench.base import BenchRun
from becausal.lab.bench.execution import BenchProgress
from becausal.lab.bench.runner import BENCHES, load_bench, run

__all__ = ["BENCHES", "BenchProgress", "BenchRun", "load_bench", "run"]
