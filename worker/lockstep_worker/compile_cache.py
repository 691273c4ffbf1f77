"""Where what Triton and torch compile is kept from start to start: a folder that an image or a volume can carry.

Both read the folder from the environment, so a rank is started with these variables and its modules need not know.
What is in the folder is theirs: an entry's name is a hash of its source, the compiler and the GPU, so one that no
longer fits is left alone and never used. Standard library only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

_SUBFOLDERS = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}


def cache_variables(folder: str | None) -> dict[str, str]:
    """Return the environment variables that lead to the folder; none without one, so that the libraries' own hold."""
    return {name: str(Path(folder, part)) for name, part in _SUBFOLDERS.items()} if folder else {}


def find_cache_faults(folder: str | None) -> Iterator[str]:
    """Yield why the folder cannot be used, naming the option.

    It is written to, as permissions do not tell of a file system that is read-only or full.
    """
    if not folder:
        return
    if not Path(folder).is_absolute():  # Triton writes where its files are into them
        yield f"compile_cache: {folder} is not an absolute path"
    elif not Path(folder).is_dir():
        yield f"compile_cache: {folder} is not a directory"
    else:
        for part in (Path(folder), *map(Path, cache_variables(folder).values())):
            if part.exists() and (reason := _refusal(part)):
                yield f"compile_cache: cannot write to {part}: {reason}"


def _refusal(folder: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror
