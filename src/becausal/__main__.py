"""`becausal` and `python -m becausal`.

Loading the command line takes a moment, and so may the end of the process. Ctrl-C ends both at once, since an exception
could get lost in an import, or be printed as a traceback.
"""

import os
import signal
import sys
from types import FrameType

_MESSAGE = "becausal: stopped: interrupted\n"


def main() -> int:
    """Run the command line and return its exit status."""
    handler = signal.getsignal(signal.SIGINT)
    is_ours = handler is signal.default_int_handler  # otherwise SIGINT is ignored, e.g. in a background job
    if is_ours:
        signal.signal(signal.SIGINT, _exit_at_once)
    from becausal.interfaces.cli.app import main as run
    from becausal.interfaces.cli.progress import end_in_time

    end_in_time()
    try:
        if is_ours:
            signal.signal(signal.SIGINT, handler)
        return run()
    except KeyboardInterrupt:
        sys.stderr.write(_MESSAGE)
        return 130
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, _exit_at_once)


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    os.write(2, _MESSAGE.encode())
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
