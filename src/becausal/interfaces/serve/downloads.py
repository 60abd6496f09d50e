"""Results of the page as zip files."""

import re
import tempfile
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from becausal.api.compare import save_comparison
from becausal.api.explanation import Explanation
from becausal.core.comparison import Comparison


def name_zip(content: Explanation | Comparison) -> str:
    """The file name of a download: ASCII letters, digits and dashes."""
    label = content.label if isinstance(content, Explanation) else f"{content.first.label}-compared"
    return f"becausal-{re.sub(r'[^A-Za-z0-9]+', '-', label).strip('-')[:40].lower() or 'answer'}.zip"


def pack_result(content: Explanation | Comparison) -> tuple[str, bytes]:
    """The folder in which a result is saved, as a zip file: its name and content; nothing stays on disk."""
    name = name_zip(content)
    folder_name = name.removesuffix(".zip")
    buffer = BytesIO()
    with tempfile.TemporaryDirectory(prefix="becausal-") as temporary, ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        folder = Path(temporary) / folder_name
        if isinstance(content, Explanation):
            content.save(folder)
        else:
            save_comparison(content, folder)
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{folder_name}/{file.name}")
    return name, buffer.getvalue()
