"""The paper's experiments and more, one function each: images, methods, rows, tables, figures and a page.

from becausal.bench import run
run("scenes", "bundled", methods="causal,rise", limit=20, out="run")
"""

from becausal.bench.performing import Progress
from becausal.bench.running import BENCHES, Run, load_bench, run

__all__ = ["BENCHES", "Progress", "Run", "load_bench", "run"]
