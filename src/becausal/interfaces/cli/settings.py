"""What the options of a command become: how a model is read, and what is asked of it.

A command asks for the thing itself, as `loading: Reading`, and `spread` puts the options it is made of in its place.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from becausal.core.errors import OptionError
from becausal.interfaces.cli import options

if TYPE_CHECKING:
    from becausal.api import Request
    from becausal.core.contracts import Classifier


@dataclass(frozen=True)
class MadeOf:
    """Says of a command's parameter that it is made of options: those of `make`, less those the command goes without."""

    make: Callable[..., Any]
    without: tuple[str, ...] = ()

    @property
    def parts(self) -> list[inspect.Parameter]:
        """The options, in the order of the help."""
        return [part for name, part in inspect.signature(self.make).parameters.items() if name not in self.without]


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer is to see it: in the place of each parameter that is `MadeOf` options, the options."""
    made: dict[str, MadeOf] = {}
    seen: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        for note in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(note, MadeOf):
                made[name] = note
        seen += made[name].parts if name in made else [parameter]

    @wraps(command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def run(**given: Any) -> None:
        whole = {name: note.make(**{part.name: given.pop(part.name) for part in note.parts}) for name, note in made.items()}
        command(**given, **whole)

    shown = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in seen]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How a model is read, as the command line was told."""

    labels: Path | str | None = None
    preprocess: str | None = None
    resize: str | int | None = None
    output: str | None = None
    device: str = "cpu"
    batch_size: int | None = None
    threads: int | None = None
    half: bool = False
    endpoint: Sequence[str] = ()

    def load(self, spec: str, *, afresh: bool = False) -> "Classifier":
        """The model of that spec; afresh: every question must reach it, no kept answer will do."""
        from becausal.models import load_model

        check_device(self.device)
        return load_model(
            spec,
            labels=self.labels,
            preprocess=self.preprocess,
            resize=self.resize,
            output=self.output,
            device=self.device,
            batch_size=self.batch_size,
            threads=self.threads,
            half=self.half,
            endpoint=(*self.endpoint, "cache=none") if afresh and spec.startswith("oip:") else self.endpoint,
        )

    def over(self, saved: dict[str, Any]) -> "Loading":
        """These options where they were given, else those that were saved; options of an endpoint are added to them."""
        plain = Loading()
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {name: value for name, value in mine.items() if value != getattr(plain, name)}
        if self.endpoint:
            given["endpoint"] = (*saved.get("endpoint", ()), *self.endpoint)
        return Loading(**({key: value for key, value in saved.items() if key in mine} | given))


def read_loading(
    *,
    labels: options.Labels = None,
    preprocess: options.Preprocess = None,
    resize: options.Resize = None,
    output: options.Output = None,
    device: options.Device = "cpu",
    batch_size: options.BatchSize = None,
    threads: options.Threads = None,
    half: options.Half = False,
    endpoint: options.Endpoint = None,
) -> Loading:
    """How a model is read, from the options."""
    return Loading(
        labels=labels,
        preprocess=preprocess,
        resize=resize,
        output=output,
        device=device,
        batch_size=batch_size,
        threads=threads,
        half=half,
        endpoint=endpoint or (),
    )


def make_request(
    *,
    target: options.Target = None,
    against: options.Against = None,
    top: options.Top = 1,
    confidence: options.Confidence = None,
    fill: options.Fill = ["grey"],  # noqa: B006 - typer reads it, nothing writes to it
    robust: options.Robust = False,
    complete: options.Complete = False,
    contrast: options.Contrast = False,
    several: options.Several = 1,
    method: options.Method = "causal",
    option: options.MethodOption = None,
    partitions: options.Partitions = None,
    grain: options.Grain = "default",
    seed: options.Seed = 0,
    max_calls: options.MaxCalls = None,
) -> "Request":
    """What is asked, from the options; a method or an option of it that does not exist is said before a model is loaded."""
    from becausal.api import Request
    from becausal.methods import make_explainer

    request = Request(
        method=method,
        options=parse_options(option or [], partitions),
        target=target,
        against=against,
        top=top,
        confidence=1.0 if complete else confidence,
        fills=options.ROBUST if robust else tuple(fill),
        grain=parse_grain(grain),
        seed=seed,
        max_calls=max_calls,
        several=several,
        contrast=contrast,
    )
    make_explainer(method, request.options)
    return request


# What commands ask for; the shorter ones are for `data make`, and for `batch`, which has no short forms.
Reading = Annotated[Loading, MadeOf(read_loading)]
ShortReading = Annotated[Loading, MadeOf(read_loading, without=("batch_size", "threads", "half"))]
Asking = Annotated["Request", MadeOf(make_request)]
AskingMany = Annotated["Request", MadeOf(make_request, without=("complete", "partitions"))]


def check_device(device: str) -> None:
    """Refuse a device that no kind of model knows."""
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device):
        raise OptionError(f"unknown device {device!r}: take cpu or cuda, or cuda:1 for the second GPU")


def parse_options(pairs: Sequence[str], partitions: int | None) -> dict[str, Any]:
    """The method's options from key=value words."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            raise OptionError(f"an option of the method is written key=value, as --option partitions=20, not {pair!r}")
        found[key.strip().replace("-", "_")] = value.strip()
    return found if partitions is None else found | {"partitions": partitions}


def parse_grain(text: str) -> int | Literal["default"] | None:
    """A side in pixels, `none`, or `default`."""
    match text.strip().lower():
        case "default":
            return "default"
        case "none":
            return None
        case number if number.isascii() and number.isdigit():
            return int(number)
    raise OptionError(f"the grain is a side in whole pixels, as 4, or none, not {text!r}")
