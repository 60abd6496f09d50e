"""The addresses of the server, and what may be sent to each of them."""

import re

EXPLAIN_PATH, JOBS_PATH, MODELS_PATH = "/v1/explain", "/v1/jobs", "/v1/models"
EXPLAIN_VERB = ":explain"  # after the name of a model
HEALTH_PATH, METRICS_PATH, DOCS_PATH, SCHEMA_PATH = "/healthz", "/metrics", "/docs", "/openapi.json"
OPEN_PATHS = frozenset({HEALTH_PATH, DOCS_PATH, SCHEMA_PATH})  # no token needed: they tell nothing about images or models

PAGE_PATH, STATIC_PATH = "/", "/static"
LABELS_PATH, SEARCH_PATH, COMPARE_PATH = "/page/labels", "/page/explain", "/page/compare"
SEARCHES_PATH = "/page/jobs"

POSTED = frozenset({EXPLAIN_PATH, f"{MODELS_PATH}/NAME{EXPLAIN_VERB}", LABELS_PATH, SEARCH_PATH, COMPARE_PATH})
_KNOWN = POSTED | OPEN_PATHS | {MODELS_PATH, METRICS_PATH, PAGE_PATH}


def name_route(path: str) -> str:
    """The address a path belongs to, as metrics count it: without the ids of jobs and the names of models."""
    if path.startswith(f"{JOBS_PATH}/"):
        return f"{JOBS_PATH}/ID"
    if path.startswith(f"{MODELS_PATH}/"):
        return f"{MODELS_PATH}/NAME{EXPLAIN_VERB if path.endswith(EXPLAIN_VERB) else ''}"
    if found := re.fullmatch(rf"{SEARCHES_PATH}/[^/]+(/(events|pixel|download))?", path):
        return f"{SEARCHES_PATH}/ID{found[1] or ''}"
    return path if path in _KNOWN else "other"


def is_for_programs(path: str) -> bool:
    """Whether an address is part of the API, for which the cookie of the page does not count."""
    return path.startswith("/v1/") or path == METRICS_PATH
