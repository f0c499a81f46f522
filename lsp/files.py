"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file beside its place and moves it there: whatever goes wrong, the older one is kept as it was."""
    data = content.encode() if isinstance(content, str) else content
    path = Path(path)
    if path.exists() and not path.is_file():  # a device or a pipe has nothing to keep; a folder is refused by this
        path.write_bytes(data)
        return
    target = path.resolve()  # where a link leads to, so that it stays a link
    part = _beside(target)
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # some file systems notice only now that they are full
        if target.exists():
            shutil.copymode(target, part)
        os.replace(part, target)
    except OSError as error:
        raise _named(error, path) from None
    finally:
        part.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises the OSError that `write_whole` would for lack of a folder or of permission. Changes nothing."""
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(2, "no such folder", str(path.parent))
    if path.exists():
        with path.open("r+b"):
            pass
    if path.is_file() or not path.exists():
        part = _beside(path.resolve())
        try:
            part.open("xb").close()
            part.unlink()
        except OSError as error:
            raise _named(error, path) from None


def _beside(target: Path) -> Path:
    return target.with_name(f".{secrets.token_hex(8)}.part")


def _named(error: OSError, path: Path) -> OSError:
    """The same error, by the name that the caller knows."""
    return OSError(error.errno, error.strerror, str(path))
