"""Runs on Ray: a cluster of two nodes, one of them killed; a local cluster that nobody outside can reach."""

import subprocess
import sys
from pathlib import Path

import pytest
from batch_toys import MODEL, open_store, toy_job, write_pictures
from libraries import need

from becausal.batch.run import run_batch
from becausal.batch.work import TaskLost
from test_batch import assert_same_runs, fill, rows_of

need("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, of its threads and sockets at the end of the process


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    return tmp_path


@pytest.mark.slow  # a minute and a half; test_batch_chunks.py tries every order of deaths with a stand-in for Ray
@pytest.mark.parametrize("count", [6, 20])
def test_a_node_dies_and_its_pictures_are_done_elsewhere(here, count):
    import ray
    from ray.cluster_utils import Cluster

    from becausal.batch.ray import RayPool

    write_pictures(Path("shots"), count)
    fill(here / "calm", toy_job(), "shots")
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": soon}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ready, lost, pool = [], [], None

    class Watched:
        """The pool, what is lost in it written down."""

        feeds_device = False

        def results(self, tasks, *, one_at_a_time=False):
            for result in pool.results(tasks, one_at_a_time=one_at_a_time):
                lost.extend([result.id] if isinstance(result, TaskLost) else [])
                yield result

    def note(found):
        ready.append(found)
        if len(ready) == 2:  # one worker on each node, which have waited for this
            Path("all-ready").touch()

    def kill_a_node(_):
        if "killed" not in ready:
            ready.append("killed")
            cluster.remove_node(node, allow_graceful=False)

    try:
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        pool = RayPool(toy_job("slow_once_all_are_ready"), note, address=cluster.address)
        assert ray.cluster_resources()["CPU"] == 2
        opened = open_store(here / "run", "shots")
        run_batch(opened, Watched(), on_event=kill_a_node)
        opened.close()
        assert ready[2] == "killed"
        assert sum(n["Alive"] for n in ray.nodes()) == 1
        assert lost
    finally:
        if pool is not None:
            pool.close()
        cluster.shutdown()
    assert [row["tries"] for row in rows_of(here / "run")] == [1] * count  # each exactly once in the index
    assert_same_runs(here / "run", here / "calm")


LOCAL = """
import contextlib, glob, os, subprocess, sys
from pathlib import Path
from becausal.api import Request
from becausal.batch.ray import RayPool
from becausal.batch.inputs import InputItem
from becausal.batch.settings import BatchJob
from becausal.batch.work import TaskLost, BatchTask

job = BatchJob(model="python:net.py:dies", request=Request(grain=4), folder=os.getcwd())
pool = RayPool(job, print, address="local", workers=1)

def listeners():
    '''Addresses on which this process or a child of it listens, as /proc shows them.'''
    own, todo = set(), [os.getpid()]
    while todo:
        pid = todo.pop()
        own.add(pid)
        for task in glob.glob(f"/proc/{pid}/task/*/children"):
            with contextlib.suppress(OSError):  # a thread that has ended since
                todo += [int(child) for child in Path(task).read_text().split()]
    sockets = set()
    for pid in own:
        for descriptor in glob.glob(f"/proc/{pid}/fd/*"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(descriptor))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and f"socket:[{parts[9]}]" in sockets:
                found.add(parts[1].split(":")[0])
    return found

tasks = [BatchTask(k, os.path.abspath(f"shots/p{k:02d}.png"), InputItem("x")) for k in range(3)]
results = {r.id: r for r in pool.results(tasks)}
again = {r.id: r for r in pool.results([tasks[k] for k in results if isinstance(results[k], TaskLost)], one_at_a_time=True)}
results |= again
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
found = listeners()
assert found and found <= LOOPBACK, found
assert os.environ.get("RAY_AUTH_MODE", "token") == "token", os.environ.get("RAY_AUTH_MODE")
kinds = {k: type(r).__name__ for k, r in sorted(results.items())}
assert kinds == {k: "TaskFailed" if k == 1 else "TaskDone" for k in range(3)}, kinds
assert "with this image alone" in results[1].reason, results[1].reason
pool.close()
print("all well")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_local_cluster_listens_on_loopback_alone_and_survives_a_worker(here):
    """In a process of its own: Ray decides where to listen when it is imported."""
    write_pictures(Path("shots"), 3, {1: 203})
    done = subprocess.run([sys.executable, "-c", LOCAL], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all well" in done.stdout


def test_a_cluster_that_is_not_there_gives_one_line(here):
    write_pictures(Path("shots"), 1)
    words = ["batch", "shots", "--model", "python:net.py:predict", "--out", "run", "--ray", "127.0.0.1:1"]
    done = subprocess.run([sys.executable, "-m", "becausal", *words], capture_output=True, text=True, timeout=180)
    assert done.returncode == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in done.stderr
    assert len(done.stderr.splitlines()) == 1
