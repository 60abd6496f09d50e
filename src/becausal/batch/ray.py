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

from becausal.batch.records import (
    ASSUMED_WIDTH,
    BatchJob,
    BatchTask,
    ModelCheck,
    TaskDone,
    TaskFailed,
    TaskLost,
    TaskResult,
    WorkerFailed,
    WorkerReady,
)
from becausal.batch.work import MAX_START_CRASHES, explain_tasks, give_up, try_open_model
from becausal.core.errors import InputError, MissingExtraError, ModelError
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
        self._workers = workers or self._count_slots()
        self._starting: dict[Any, Any] = {}  # pending start: actor
        self._busy: dict[Any, tuple[Any, dict[int, BatchTask]]] = {}  # results to come: actor, its tasks by number

    def results(self, tasks: Iterable[BatchTask], *, one_at_a_time: bool = False) -> Iterator[TaskResult]:
        """See `WorkerPool`."""
        width, max_chunks = (1, 1) if one_at_a_time else (self._width, MAX_CHUNKS)
        size = 1 if width == 1 else CHUNK * (width or ASSUMED_WIDTH)  # larger chunks help only if images share batches
        chunks = split_fairly(tasks, size, self._workers)
        start_crashes, is_over = 0, False
        for _ in range(self._workers):
            self._start(width)
        while self._busy or not is_over:
            (ready, *_), _ = self._ray.wait([*self._starting, *self._busy], num_returns=1)
            is_start = ready in self._starting
            actor = self._starting.pop(ready) if is_start else self._busy[ready][0]
            try:
                message = self._ray.get(ready if is_start else next(ready))
            except StopIteration:  # the chunk is done
                del self._busy[ready]
                message = None
            except self._ray.exceptions.RayError as error:
                reason = f"the Ray worker died or failed: {one_line(_last_line(error), 160)}"
                start_crashes += is_start
                if start_crashes >= MAX_START_CRASHES:
                    raise ModelError(f"{reason}; it had not loaded the model yet: not enough memory?") from None
                yield from give_up(self._dismiss(actor), reason, one_at_a_time=one_at_a_time)
                if not is_over:
                    self._start(width)
                continue
            match message:
                case WorkerFailed(reason):
                    raise ModelError(reason)
                case WorkerReady():
                    self._check(message)
                    start_crashes = 0
                case TaskDone() | TaskFailed() | TaskLost():
                    del self._busy[ready][1][message.id]
                    yield message
            while not is_over and sum(owner is actor for owner, _ in self._busy.values()) < max_chunks:
                chunk = next(chunks, [])
                is_over = not chunk
                if chunk:
                    self._busy[actor.explain.remote(chunk)] = (actor, {task.id: task for task in chunk})
        self._end_actors()

    def close(self) -> None:
        """End the actors, and the cluster or connection that this pool opened."""
        self._end_actors()
        if not self._was_running:
            self._ray.shutdown()

    def _count_slots(self) -> int:
        """The number of actors the cluster has resources for now."""
        have = self._ray.cluster_resources()
        slots = have.get("GPU", 0) / self._gpus if self._gpus else have.get("CPU", 1)
        if self._gpus and slots < 1:
            raise InputError(f"the Ray cluster has {have.get('GPU', 0):g} GPUs, and each worker needs {self._gpus:g}")
        return max(1, int(slots))

    def _start(self, width: int | None) -> None:
        actor_class = self._ray.remote(RayWorker).options(
            num_cpus=0 if self._gpus else 1,
            num_gpus=self._gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        actor = actor_class.remote(self._job, width)
        self._starting[actor.start.remote()] = actor

    def _dismiss(self, actor: Any) -> list[BatchTask]:
        """Kill an actor and return the tasks it still held."""
        self._ray.kill(actor)
        held = {results: tasks for results, (owner, tasks) in self._busy.items() if owner is actor}
        for results in held:
            del self._busy[results]
        return [task for tasks in held.values() for task in tasks.values()]

    def _end_actors(self) -> None:
        actors = [*self._starting.values(), *(actor for actor, _ in self._busy.values())]
        self._starting.clear()
        self._busy.clear()
        for actor in actors:
            self._ray.kill(actor)


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
            _check_port(address)
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise InputError(f"cannot connect to a Ray cluster at {address!r}: {one_line(error, 200)}") from None
    if address == "local" and (found := ray.util.get_node_ip_address()) != "127.0.0.1":
        ray.shutdown()
        raise InputError(f"Ray would listen on {found}: import becausal before Ray, or join a cluster with --ray ADDRESS")


def _check_port(address: str) -> None:
    """Check that the port accepts connections: Ray itself would try for minutes. Raises InputError."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
        except OSError as error:
            raise InputError(f"no Ray cluster answers at {address}: {one_line(error)}") from None


def _last_line(error: Exception) -> str:
    """The last line of Ray's message, which has the reason; the lines before it are tracebacks of actors."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
