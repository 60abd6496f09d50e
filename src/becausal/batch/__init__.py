"""Many images: runs that can be killed at any moment, resumed, asked about, and spread over processes or a Ray cluster.

    inputs ─▶ store ─▶ tasks ─▶ pool (this process, worker processes, Ray) ─▶ results ─▶ store ─▶ overview, export, diff

Only the driver writes: a pool is handed tasks and hands back results, files as bytes included. So no worker can leave
anything half-written, none needs to see the run folder, and a result is counted once, in the driver.
"""
