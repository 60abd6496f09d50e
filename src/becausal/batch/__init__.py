"""Explain many images in a run that can be interrupted, resumed, queried and distributed.

    inputs ─▶ store ─▶ tasks ─▶ pool (this process, worker processes, Ray) ─▶ results ─▶ store ─▶ overview, export, diff

Only the driver process writes. A pool receives tasks and returns results, files included as bytes. Workers need no access
to the run folder and cannot leave incomplete files, and the driver stores each result exactly once.
"""
