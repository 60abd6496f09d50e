"""Every exception of the package.

    BecausalError
    ├── InputError              what was given cannot be used
    │   ├── ImageError          an image, signal or volume that cannot be read
    │   ├── ModelError          a model that cannot be loaded, or a spec that names none
    │   ├── OptionError         an option with a value that makes no sense
    │   ├── TargetError         a target that is unknown, or does not hold on the whole view
    │   └── FillError           a fill that is unknown, or under which the fully masked image already has the target
    ├── AnswerError             a model that broke while it was asked
    │   └── UnstableModelError  a model that answered the same question in two ways
    ├── MissingExtraError       an optional library is not installed; the message names the extra
    ├── NetworkError            something had to be fetched, or called, and could not be
    └── OutputError             a result that cannot be written, or read back

The command line prints the message of any of these as one line and exits with status 2.
"""


class BecausalError(Exception):
    """The root of all errors this package raises on purpose."""


class InputError(BecausalError):
    """What was given cannot be used."""


class ImageError(InputError):
    """An image, signal or volume cannot be read."""


class ModelError(InputError):
    """A model cannot be loaded, or its spec names none."""


class OptionError(InputError):
    """An option has a value that makes no sense."""


class TargetError(InputError):
    """The target is unknown, or does not hold on the whole view."""


class FillError(InputError):
    """The fill is unknown, or the fully masked image under it already has the target."""


class AnswerError(BecausalError):
    """The model broke while it was asked."""


class UnstableModelError(AnswerError):
    """The model answered the same question in two ways."""


class MissingExtraError(BecausalError):
    """An optional library is not installed."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {library}, which is not installed: pip install 'becausal[{extra}]'")
        self.library = library
        self.extra = extra


class NetworkError(BecausalError):
    """Something had to be fetched, or called, and could not be."""


class OutputError(BecausalError):
    """A result cannot be written, or cannot be read back."""
