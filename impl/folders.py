"""Where things are kept between runs."""

import os
import uuid
from pathlib import Path

import platformdirs


def cache_root() -> Path:
    """The folder for what can be had again: `EVICTCHECK_CACHE`, else the user's cache. It need not exist."""
    folder = os.environ.get("EVICTCHECK_CACHE")
    return Path(folder) if folder else platformdirs.user_cache_path("evictcheck")


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that it appears whole or not at all, whoever else writes it at the same time."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
