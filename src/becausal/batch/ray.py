"""A pool of Ray actors: on this machine, or on the nodes of a cluster. The only file that knows Ray.

Each actor holds the model. It is handed portions of tasks, two at a time so that it never waits for us and never holds
more; results come back through Ray, and only the driver writes. An actor that dies, alone or with its node, is replaced
as soon as the cluster has room, and what it held is Lost: the run tries it again. Actors that find no room yet wait, and
take part when there is some.

Ray's token authentication is left as it is. A local cluster listens on the loopback address only and has no dashboard.
"""

import logging
import os
import socket
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from becausal.batch.records import NATURAL, Broken, Check, Failed, Hello, Job, Lost, Result, Task
from becausal.batch.work import one_line, open_model, work
from becausal.core.errors import BecausalError, InputError, MissingExtraError, ModelError

PORTION = 4  # tasks per image side by side in one hand-over
DEPTH = 2  # portions an actor is given at a time
KNOCK = 10.0  # seconds to wait for an answer at a cluster's address
STARTS = 3  # how often in a row an actor may die before it has loaded the model


class Worker:
    """What an actor does; it loads the model when first asked who it is, so that a reason can be given if it cannot."""

    def __init__(self, job: Job, width: int | None) -> None:
        self._job, self._width = job, width
        self._classifier: Any = None

    def hello(self) -> Hello | Broken:
        """Load the model and say which it is."""
        if os.path.isdir(self._job.folder):
            os.chdir(self._job.folder)  # relative paths of the model are meant there
        try:
            self._classifier, hello = open_model(self._job)
        except BecausalError as error:
            return Broken(one_line(error))
        return hello

    def explain(self, tasks: list[Task]) -> list[Result]:
        """One result per task."""
        return list(work(tasks, self._classifier, self._job, width=self._width))


class RayPool:
    """Actors on a Ray cluster: address `local` starts one on this machine, `auto` or an address joins a running one.

    workers: how many actors; None: as many as the cluster has CPUs, or GPUs where they need those, for. gpus: GPUs per
    actor, as 0.5. Raises MissingExtraError without Ray, InputError for a cluster that cannot be reached.
    """

    def __init__(
        self,
        job: Job,
        check: Check,
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
        self._workers = workers or self._count_places()
        self._starting: dict[Any, Any] = {}  # the hello that is awaited: actor
        self._busy: dict[Any, tuple[Any, list[Task]]] = {}  # the portion that is awaited: actor, its tasks

    def answers(self, tasks: Iterable[Task], *, alone: bool = False) -> Iterator[Result]:
        """See `Pool`."""
        waiting = iter(tasks)
        width, depth = (1, 1) if alone else (self._width, DEPTH)
        size = 1 if width == 1 else PORTION * (width or NATURAL)  # only images side by side need company
        first = next(waiting, None)
        if first is None:
            return
        waiting, deaths, is_over = chain([first], waiting), 0, False
        for _ in range(self._workers):
            self._start(width)
        while self._busy or not is_over:
            ready, _ = self._ray.wait([*self._starting, *self._busy], num_returns=1)
            actor, held = self._take(ready[0])
            try:
                message = self._ray.get(ready[0])
            except self._ray.exceptions.RayError as error:
                reason = f"the Ray worker died or failed: {one_line(_cause(error), 160)}"
                deaths += 0 if held else 1
                if deaths >= STARTS:
                    raise ModelError(f"{reason}; it had not loaded the model yet: not enough memory?") from None
                for task in chain(held, self._dismiss(actor)):
                    yield Failed(task.id, f"{reason}, with this image alone") if alone else Lost(task.id, reason)
                if not is_over:
                    self._start(width)
                continue
            match message:
                case Broken(reason):
                    raise ModelError(reason)
                case Hello():
                    self._check(message)
                    deaths = 0
                case _:
                    yield from message
            while not is_over and sum(owner is actor for owner, _ in self._busy.values()) < depth:
                portion = list(islice(waiting, size))
                is_over = not portion
                if portion:
                    self._busy[actor.explain.remote(portion)] = (actor, portion)
        self._end_actors()

    def close(self) -> None:
        """End the actors, and the cluster or the connection that this pool made."""
        self._end_actors()
        if not self._was_running:
            self._ray.shutdown()

    def _count_places(self) -> int:
        """How many actors the cluster has room for now."""
        have = self._ray.cluster_resources()
        places = have.get("GPU", 0) / self._gpus if self._gpus else have.get("CPU", 1)
        if self._gpus and places < 1:
            raise InputError(f"the Ray cluster has {have.get('GPU', 0):g} GPUs, and each worker needs {self._gpus:g}")
        return max(1, int(places))

    def _start(self, width: int | None) -> None:
        made = self._ray.remote(Worker).options(
            num_cpus=0 if self._gpus else 1,
            num_gpus=self._gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        actor = made.remote(self._job, width)
        self._starting[actor.hello.remote()] = actor

    def _take(self, reference: Any) -> tuple[Any, list[Task]]:
        """The actor behind an awaited reference, and the tasks it was about; they are awaited no more."""
        if reference in self._starting:
            return self._starting.pop(reference), []
        return self._busy.pop(reference)

    def _dismiss(self, actor: Any) -> list[Task]:
        """Make sure that an actor is gone, and name the tasks it still held."""
        self._ray.kill(actor)
        held = {reference: tasks for reference, (owner, tasks) in self._busy.items() if owner is actor}
        for reference in held:
            del self._busy[reference]
        return [task for tasks in held.values() for task in tasks]

    def _end_actors(self) -> None:
        actors = [*self._starting.values(), *(actor for actor, _ in self._busy.values())]
        self._starting.clear()
        self._busy.clear()
        for actor in actors:
            self._ray.kill(actor)


def _import_ray(address: str) -> Any:
    if address == "local":
        # Without this Ray takes the machine's outer address and listens there, even where 127.0.0.1 is asked for. It is
        # read once, when Ray is imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # reports to nobody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray is about to do anyway, and warns of
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
            _knock(address)
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise InputError(f"no Ray cluster could be reached at {address!r}: {one_line(error, 200)}") from None
    if address == "local" and (found := ray.util.get_node_ip_address()) != "127.0.0.1":
        ray.shutdown()
        raise InputError(f"Ray would listen on {found}: import becausal before Ray, or join a cluster with --ray ADDRESS")


def _knock(address: str) -> None:
    """See whether anyone is there at all: Ray itself would try for minutes. Raises InputError."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK).close()
        except OSError as error:
            raise InputError(f"no Ray cluster answers at {address}: {one_line(error)}") from None


def _cause(error: Exception) -> str:
    """The last line of what Ray says, where the reason stands; tracebacks of actors fill the ones before."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
