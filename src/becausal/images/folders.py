"""The images in a folder."""

import os
from collections.abc import Iterator
from pathlib import Path

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".npy")


def list_images(folder: Path) -> Iterator[str]:
    """All images below a folder, sorted by name within each folder; hidden files and folders are skipped."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                yield str(Path(root) / name)
