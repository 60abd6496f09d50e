"""becausal: ask an image classifier why.

import becausal
explanation = becausal.explain("picture.jpg", "model.onnx")
explanation.plot()
"""

from becausal.api import Failure, Request, Status, classify, explain, explain_many, verify
from becausal.api.explanation import Explanation
from becausal.core.checks import Checks, Claim
from becausal.core.errors import BecausalError
from becausal.core.version import __version__
from becausal.models import load_model

__all__ = [
    "BecausalError",
    "Checks",
    "Claim",
    "Explanation",
    "Failure",
    "Request",
    "Status",
    "__version__",
    "classify",
    "explain",
    "explain_many",
    "load_model",
    "verify",
]
