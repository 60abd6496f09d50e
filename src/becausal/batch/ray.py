"""A pool of Ray actors, on this machine or on the nodes of a cluster. The only file that uses Ray.

Each actor holds the model. It gets chunks of tasks, at most two at a time, so that it never waits for the driver. Results
come back through Ray, each as soon as it is there, and only the driver writes files. An actor that dies, alone or with its
node, is replaced as soon as the cluster has resources, and its tasks are lost: the run tries them again. Actors without
resources wait and join later.

Ray's token authentication is not changed. A local cluster listens on the loopback address only and has no dashboard.
"""

import logging
import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from becausal.batch.pools import ASSUMED_WIDTH, share_out
from becausal.batch.settings import BatchJob
from becausal.batch.work import BatchTask, ModelCheck, TaskResult, WorkerFailed, WorkerReady, explain_tasks, try_open_model
from becausal.core.errors import InputError, MissingExtraError
from becausal.core.text import one_line

CHUNK = 4  # tasks per chunk, for each image that is explained concurrently
MIN_CHUNK = 4  # fewer tasks would share no batches
MAX_CHUNKS = 2  # chunks an actor holds at a time
CONNECT_TIMEOUT = 10.0  # seconds to wait for a cluster to accept a connection


class RayWorker:
    """The code of an actor. The model is loaded by `start`, so that a failure can be reported with its reason."""

    def __init__(self, job: BatchJob, width: int | None) -> None:
        self._job, self._width = job, width
        self._classifier: Any = None

    def start(self) -> WorkerReady | WorkerFailed:
        """Load the model and report its facts."""
        if os.path.isdir(self._job.folder):
            os.chdir(self._job.folder)  # relative paths of the model refer to it
        self._classifier, message = try_open_model(self._job)
        return message

    def explain(self, tasks: list[BatchTask]) -> Iterator[TaskResult]:
        """One result per task, which Ray sends as it comes."""
        yield from explain_tasks(tasks, self._classifier, self._job, width=self._width)


class RayPool:
    """Actors on a Ray cluster: address `local` starts one on this machine, `auto` or an address joins a running one.

    workers: number of actors; None for as many as the cluster has CPUs for, or GPUs if actors need them. gpus: GPUs per
    actor, e.g. 0.5. Raises MissingExtraError without Ray, InputError for a cluster that cannot be reached.
    """

    feeds_device = False

    def __init__(
        self,
        job: BatchJob,
        check: ModelCheck,
        *,
        address: str = "local",
        workers: int | None = None,
        gpus: float = 0,
        width: int | None = 1,
    ) -> None:
        self._ray = _import_ray(address)
        self._job, self._check, self._width, self._gpus = job, check, width, gpus
        self._was_running = self._ray.is_initialized()
        if not self._was_running:
            _connect(self._ray, address, workers)
        if workers is None:  # as many as the cluster has resources for now
            have = self._ray.cluster_resources()
            slots = have.get("GPU", 0) / gpus if gpus else have.get("CPU", 1)
            if gpus and slots < 1:
                raise InputError(f"the Ray cluster has {have.get('GPU', 0):g} GPUs, and each worker needs {gpus:g}")
            workers = max(1, int(slots))
        self._workers = workers
        self._starting: dict[Any, Any] = {}  # pending start: actor
        self._streams: dict[Any, Any] = {}  # results of a chunk, to come: actor

    def results(self, tasks: Iterable[BatchTask], *, one_at_a_time: bool = False) -> Iterator[TaskResult]:
        width = 1 if one_at_a_time else self._width
        size = 1 if width == 1 else CHUNK * (width or ASSUMED_WIDTH)  # larger chunks help only if images share batches
        return share_out(
            self,
            split_fairly(tasks, size, self._workers),
            self._check,
            workers=self._workers,
            width=width,
            ahead=1 if one_at_a_time else MAX_CHUNKS,
            one_at_a_time=one_at_a_time,
        )

    def start(self, width: int | None) -> Any:
        actor_class = self._ray.remote(RayWorker).options(
            num_cpus=0 if self._gpus else 1,
            num_gpus=self._gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        actor = actor_class.remote(self._job, width)
        self._starting[actor.start.remote()] = actor
        return actor

    def send(self, worker: Any, tasks: list[BatchTask]) -> None:
        self._streams[worker.explain.remote(tasks)] = worker

    def messages(self) -> Iterator[tuple[Any, Any]]:
        while waiting := [*self._starting, *self._streams]:
            (ready, *_), _ = self._ray.wait(waiting, num_returns=1)
            is_start = ready in self._starting
            actor = self._starting.pop(ready) if is_start else self._streams[ready]
            try:
                message = self._ray.get(ready if is_start else next(ready))
            except StopIteration:  # the chunk is done
                del self._streams[ready]
                message = None
            except self._ray.exceptions.RayError as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                reason = lines[-1] if lines else type(error).__name__  # the lines before it are tracebacks of actors
                self.end(actor)
                message = WorkerFailed(f"the Ray worker died or failed: {one_line(reason, 160)}", has_died=True)
            yield actor, message

    def end(self, worker: Any) -> None:
        """See `Carrier`."""
        self._ray.kill(worker)
        self._streams = {stream: owner for stream, owner in self._streams.items() if owner is not worker}

    def stop(self) -> None:
        for actor in {*self._starting.values(), *self._streams.values()}:
            self._ray.kill(actor)
        self._starting.clear()
        self._streams.clear()

    def close(self) -> None:
        """End the actors, and the cluster or connection that this pool opened."""
        self.stop()
        if not self._was_running:
            self._ray.shutdown()


def split_fairly(tasks: Iterable[BatchTask], size: int, workers: int) -> Iterator[list[BatchTask]]:
    """Chunks of at most `size` tasks; smaller ones near the end, so that each worker has a share of what is left."""
    source, ahead = iter(tasks), deque[BatchTask]()
    while True:
        ahead.extend(islice(source, 1 if size == 1 else size * workers - len(ahead)))
        if not ahead:
            return
        count = min(size, len(ahead), max(MIN_CHUNK, -(-len(ahead) // workers)))
        yield [ahead.popleft() for _ in range(count)]


def _import_ray(address: str) -> Any:
    if address == "local":
        # Without this Ray listens on the machine's external address, even where 127.0.0.1 is requested. It is read once,
        # when Ray is imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default, which avoids its warning
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray", "--ray") from None
    return ray


def _connect(ray: Any, address: str, workers: int | None) -> None:
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False, "namespace": "becausal"}
    try:
        if address == "local":
            ray.init(address="local", include_dashboard=False, num_cpus=workers, _node_ip_address="127.0.0.1", **quiet)
        else:
            host, colon, port = address.removeprefix("ray://").rpartition(":")
            if colon and port.isdigit():  # Ray itself would try for minutes to reach a port where nobody listens
                try:
                    socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
                except OSError as error:
                    raise InputError(f"no Ray cluster answers at {address}: {one_line(error)}") from None
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise InputError(f"cannot connect to a Ray cluster at {address!r}: {one_line(error, 200)}") from None
    if address == "local" and (found := ray.util.get_node_ip_address()) != "127.0.0.1":
        ray.shutdown()
        raise InputError(f"Ray would listen on {found}: import becausal before Ray, or join a cluster with --ray ADDRESS")
