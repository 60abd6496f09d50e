"""Benches: the experiments of the paper and others, each with rows, tables, figures and a page.

from becausal.lab import run
run("scenes", "bundled", methods="causal,rise", limit=20, out="run")
"""

from becausal.lab.base import BenchRun
from becausal.lab.runner import BENCHES, BenchProgress, load_bench, run

__all__ = ["BENCHES", "BenchProgress", "BenchRun", "load_bench", "run"]
