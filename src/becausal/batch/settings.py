"""Everything that decides the answers of a run, as records that are stored in the index and compared on resume."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from becausal.batch.inputs import Inputs
from becausal.batch.records import BatchJob
from becausal.core.version import __version__

DIRECTORY = "working_directory"
MAX_SHOWN = 60  # characters of a value in a message


def settings_of(job: BatchJob, inputs: Inputs) -> dict[str, Any]:
    """The records of a run. Batch size and threads are left out: answers do not depend on them."""
    return {
        "model": job.model,
        "request": job.request.record(),
        "loading": replace(job.loading, batch_size=None, threads=None).record(),
        "render": job.render,
        "becausal": __version__,
        DIRECTORY: job.folder if inputs.has_relative_paths else None,
    }


def by_option(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by option name: the records `request` and `loading` merged into the rest."""
    rest = {name: value for name, value in settings.items() if name not in ("request", "loading")}
    return {**rest, **settings.get("request", {}), **settings.get("loading", {})}


def list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The values that differ, e.g. "seed was 0, now 4"; an absent value counts as None."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return [f"{name} was {_format_value(before.get(name))}, now {_format_value(now.get(name))}" for name in names]


def to_json(value: Any) -> str:
    """The value as JSON with sorted keys, so that equal records give equal text."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _format_value(value: Any) -> str:
    text = "not given" if value is None else value if isinstance(value, str) else to_json(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"
