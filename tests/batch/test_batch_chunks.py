"""How tasks are handed to Ray actors, and how results come back: with a stand-in for Ray, so that every order is tried."""

import random
from types import SimpleNamespace

import pytest
from batch_toys import toy_job
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.batch import ray as ray_pool
from becausal.batch.inputs import InputItem
from becausal.batch.pools import ASSUMED_WIDTH
from becausal.batch.work import BatchTask, TaskFailed, TaskLost, WorkerReady


class ActorDied(Exception):
    """What the stand-in raises for an actor that was killed."""


class SimpleReference:
    def __init__(self, value):
        self.value = value


class Actor:
    """An actor that answers each task with a failure that names its chunk; dies_after: results before it dies."""

    def __init__(self, dies_after):
        self.chunks, self.dies_after = [], dies_after
        self.start = SimpleNamespace(remote=lambda: SimpleReference(WorkerReady({}, ())))
        self.explain = SimpleNamespace(remote=self._explain)

    def _explain(self, tasks):
        self.chunks.append([task.id for task in tasks])
        return self._results(tasks)

    def _results(self, tasks):
        for task in tasks:
            if self.dies_after == 0:
                yield ActorDied("killed")
                return
            self.dies_after -= 1
            yield TaskFailed(task.id, "answered")


class StandIn:
    """The part of Ray that the pool uses; what is ready first is random."""

    exceptions = SimpleNamespace(RayError=ActorDied)

    def __init__(self, seed, deaths):
        self.random, self.deaths, self.actors = random.Random(seed), list(deaths), []

    def is_initialized(self):
        return True

    def remote(self, cls):
        def start(*_):
            self.actors.append(Actor(self.deaths.pop() if self.deaths else -1))
            return self.actors[-1]

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))

    def wait(self, waitables, num_returns):
        ready = self.random.choice(waitables)
        return [ready], [each for each in waitables if each is not ready]

    def get(self, reference):
        if isinstance(reference, ActorDied):
            raise reference
        return reference.value if isinstance(reference, SimpleReference) else reference

    def kill(self, actor):
        pass


def run(monkeypatch, ray, count, **options):
    monkeypatch.setattr(ray_pool, "_import_ray", lambda address: ray)
    pool = ray_pool.RayPool(toy_job(), lambda ready: None, **options)
    return pool.results([BatchTask(i, f"{i}.png", InputItem(f"{i}.png")) for i in range(count)])


@given(st.integers(0, 10**6), st.integers(0, 400), st.integers(1, 5), st.sampled_from([1, 2, None]))
@settings(max_examples=60, deadline=None)
def test_every_task_is_answered_once_whatever_is_ready_first(seed, count, workers, width):
    with pytest.MonkeyPatch.context() as patch:
        found = [result.id for result in run(patch, StandIn(seed, []), count, workers=workers, width=width)]
    assert sorted(found) == list(range(count))


@given(st.integers(0, 10**6), st.lists(st.integers(0, 20), max_size=4), st.sampled_from([1, None]))
@settings(max_examples=60, deadline=None)
def test_tasks_of_an_actor_that_dies_are_lost_and_what_it_had_answered_is_not(seed, deaths, width):
    with pytest.MonkeyPatch.context() as patch:
        found = list(run(patch, StandIn(seed, deaths), 100, workers=3, width=width))
    assert sorted(result.id for result in found) == list(range(100))
    lost = [result.id for result in found if isinstance(result, TaskLost)]
    assert bool(lost) <= bool(deaths)
    if 0 in deaths[-3:]:  # one of the first three actors dies at once
        assert lost


def test_results_come_one_by_one_and_not_at_the_end_of_a_chunk(monkeypatch):
    ray = StandIn(0, [])
    results = run(monkeypatch, ray, 64, workers=1, width=None)
    next(results)
    assert [len(chunk) for chunk in ray.actors[0].chunks] == [64]
    assert len(list(results)) == 63


@pytest.mark.parametrize("count", [96, 100, 1000])
def test_all_workers_have_a_share_of_a_small_run(monkeypatch, count):
    ray = StandIn(1, [])
    assert len(list(run(monkeypatch, ray, count, workers=4, width=None))) == count
    shares = [sum(map(len, actor.chunks)) for actor in ray.actors]
    assert min(shares) >= count / 10
    assert max(len(chunk) for actor in ray.actors for chunk in actor.chunks) <= 4 * ASSUMED_WIDTH
