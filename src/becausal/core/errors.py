"""Every exception of the package.

    BecausalError
    ├── InputError              what was given cannot be used
    │   ├── ImageError          an image, signal or volume that cannot be read
    │   ├── ModelError          a model that cannot be loaded, or a spec that names none
    │   ├── OptionError         an option with a value that makes no sense
    │   ├── TargetError         a target that is unknown, or does not hold on the whole view
    │   └── FillError           a fill that is unknown, or under which the fully masked image already has the target
    ├── AnswerError             a model that failed while it was evaluated
    │   ├── UnstableModelError  a model that answered the same question in two ways
    │   └── TwinError           a faster stand-in of a model that gave another answer; the search is repeated without it
    ├── MissingExtraError       an optional library is not installed; the message says what to install
    ├── NetworkError            something had to be fetched, or called, and could not be
    └── OutputError             a result that cannot be written, or read back
        └── DamagedIndexError   an index of a run that is lost or damaged, and can be made again from the explanations

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
    """The model failed while it was evaluated."""


class UnstableModelError(AnswerError):
    """The model answered the same question in two ways."""


class TwinError(AnswerError):
    """A faster stand-in of the model gave another answer than the model itself.

    is_wrong: whether by more than rounding explains; if not, it may still guide other searches.
    """

    def __init__(self, said: str, *, is_wrong: bool = True) -> None:
        super().__init__(said)
        self.is_wrong = is_wrong


#: The packages of each extra, as pip installs them.
EXTRAS: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "hf": ("torch", "transformers"),
    "timm": ("torch", "timm"),
    "torchvision": ("torch", "torchvision"),
    "keras": ("keras",),
    "gradients": ("torch", "captum"),
    "shap": ("shap",),
    "inpaint": ("opencv-python-headless",),
    "endpoint": ("httpx",),
    "ray": ("ray",),
    "parquet": ("pyarrow",),
    "serve": ("starlette", "uvicorn", "python-multipart", "prometheus-client"),
    "xaitk": ("xaitk-saliency",),
}


class MissingExtraError(BecausalError):
    """An optional library is not installed.

    The message names the packages themselves, since an extra can only be installed from the source.
    """

    def __init__(self, library: str, extra: str, purpose: str, *, advice: str | None = None) -> None:
        install = f'pip install {" ".join(EXTRAS[extra])}, or pip install ".[{extra}]" in the folder of becausal\'s source'
        super().__init__(f"{purpose} needs {library}, which is not installed: {advice or install}")
        self.library = library
        self.extra = extra


class NetworkError(BecausalError):
    """Something had to be fetched, or called, and could not be."""


class OutputError(BecausalError):
    """A result cannot be written, or cannot be read back."""


class DamagedIndexError(OutputError):
    """The index of a run is lost or damaged."""
