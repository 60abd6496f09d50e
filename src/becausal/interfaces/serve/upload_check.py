"""Uploads are decoded once in a process of their own, so that a hostile file cannot use up the server's time or memory.

This module is both sides of it: `UploadChecks` starts the process, `main` is what runs there.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256

from becausal.core.errors import ImageError
from becausal.interfaces.serve.images import Upload, decode_image
from becausal.interfaces.serve.limits import Limits

MAX_CHECKS = 3  # at once
MAX_CLIENT_CHECKS = 2  # of one client address, so that nobody can occupy all of them
MAX_GOOD = 1000  # files whose hashes are kept
WALL_FACTOR = 4  # seconds on the clock per second of processor time, on a busy machine
PROGRAM = f"from {__name__} import main; main()"


class UploadChecks:
    """Checks a few uploads at once; those of other clients do not wait for a client with slow ones."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = ThreadPoolExecutor(MAX_CHECKS, thread_name_prefix="becausal-check")
        self._running: Counter[str] = Counter()
        self._changed = asyncio.Condition()
        self._good: OrderedDict[str, None] = OrderedDict()  # hashes of files that were decoded: the page sends one again

    async def check(self, upload: Upload, client: str) -> None:
        """Decode an upload of a client address; raises ImageError if that fails or takes too long."""
        name = sha256(upload.data).hexdigest()
        if name in self._good:
            return
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_slot(client))
            self._running[client] += 1
        try:
            await asyncio.get_running_loop().run_in_executor(self._pool, check_upload, upload, self._limits)
            self._good[name] = None
            while len(self._good) > MAX_GOOD:
                self._good.popitem(last=False)
        finally:
            self._running -= Counter([client])  # drops what is zero
            async with self._changed:
                self._changed.notify_all()

    def _has_slot(self, client: str) -> bool:
        return self._running.total() < MAX_CHECKS and self._running[client] < MAX_CLIENT_CHECKS

    def close(self) -> None:
        """Do not start any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def check_upload(upload: Upload, limits: Limits) -> None:
    """Decode an upload in another process within `limits`; raises ImageError if that fails or takes too long."""
    command = [sys.executable, "-P", "-c", PROGRAM, upload.name, json.dumps(asdict(limits))]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    too_slow = ImageError(f"{upload.name} takes too long or too much memory to decode: save it as a JPEG or PNG file")
    try:
        done = subprocess.run(
            command,
            input=upload.data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=WALL_FACTOR * limits.decode_seconds,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise too_slow from None
    if done.returncode < 0:  # ended by a limit, or by a fault in a decoder
        raise too_slow
    try:
        reply = json.loads(done.stdout)
    except ValueError:
        raise ImageError(f"{upload.name} could not be checked: the process that decodes images has failed") from None
    if reply["error"] is not None:
        raise ImageError(reply["error"])


def main() -> None:
    """Decode the file on stdin, and print as JSON what is wrong with it."""
    name, limits = sys.argv[1], Limits(**json.loads(sys.argv[2]))
    with suppress(ImportError):  # Windows has no such limits; there only the time is limited
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (limits.decode_seconds, limits.decode_seconds))
        resource.setrlimit(resource.RLIMIT_AS, (limits.decode_bytes, limits.decode_bytes))
    error = None
    try:
        decode_image(Upload(name, sys.stdin.buffer.read()), limits)
    except ImageError as failure:
        error = str(failure)
    except MemoryError:
        error = f"{name} takes too much memory to decode: save it as a JPEG or PNG file"
    print(json.dumps({"error": error}))
