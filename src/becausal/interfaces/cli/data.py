"""`becausal data`: download the published datasets."""

from pathlib import Path
from typing import Annotated

import typer

from becausal.interfaces.cli.console import check_writable, open_console
from becausal.interfaces.cli.help import add_command, make_group
from becausal.interfaces.cli.progress import ProgressBar


def get(
    name: Annotated[str, typer.Argument(metavar="photobombing|roaming-panda", help="Dataset to download.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder to write to. Default: data/NAME.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="Mirror with the same folders. Default: the authors' repository."),
    ] = None,
) -> None:
    """Download a published dataset from its authors' repository and check it.

    The images come from ImageNet and are for research. To continue an interrupted download, run the same command again:
    files that are already there are not downloaded again.

    **Examples**

    - `becausal data get photobombing`
    - `becausal data get roaming-panda --out sets/panda`
    """
    from becausal.lab.bench.fetching import SETS, fetch_dataset

    folder = out or Path("data") / name
    check_writable(folder)
    with ProgressBar(f"downloading {name}", has_time_left=True) as bar:
        fetch_dataset(name, folder, address=address, watch=bar.update)
    open_console().print(f"{SETS[name].files:,} files, checked, in {folder}/  (becausal bench {name} --data {folder} …)")


app = make_group("Download datasets for `becausal bench`.")
add_command(app, "get", get)
