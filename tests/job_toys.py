"""Tasks for processes of a server: they must be importable there."""

import os
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Endless:
    """A method that never returns, and never reports."""

    classifier: Any

    def __call__(self, progress):
        while True:
            time.sleep(0.01)


@dataclass(frozen=True)
class Dying:
    classifier: Any

    def __call__(self, progress):
        os._exit(1)


@dataclass(frozen=True)
class Failing:
    classifier: Any
    error: BaseException

    def __call__(self, progress):
        raise self.error


@dataclass(frozen=True)
class Naming:
    """What the model of the process is, and which process it is."""

    classifier: Any

    def __call__(self, progress):
        return self.classifier.info.spec, os.getpid()
