"""Where a checkpoint is: a local folder, the embedded model, or the hub."""

from __future__ import annotations

import os
from pathlib import Path

from lsp.extras import needed_by
from lsp.tiny import CHECKPOINT

SMALL = ["*.json", "*.txt", "*.model", "*.jinja"]
"""Config, tokenizer and chat template."""


def find(
    path_or_name: str | os.PathLike[str],
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    *,
    weights: bool = True,
) -> Path:
    """The folder of a checkpoint, which is downloaded if it has to be."""
    if path_or_name == "tiny":
        return CHECKPOINT
    folder = Path(path_or_name).expanduser()
    if folder.is_dir():
        return folder
    name = os.fspath(path_or_name)
    if folder.exists():
        raise NotADirectoryError(f"Invalid path_or_name: expected a folder, got the file {name}")
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise FileNotFoundError(
            f"Invalid path_or_name: expected a folder or a name on the hub, got {name}: no such folder"
        )
    return _download(name, revision, cache_dir, token, local_files_only, weights)


def _download(
    name: str,
    revision: str | None,
    cache_dir: str | os.PathLike[str] | None,
    token: str | bool | None,
    local_files_only: bool,
    weights: bool,
) -> Path:
    with needed_by(f"{name} is not a local folder, and a download"):
        import huggingface_hub.errors as errors
        from huggingface_hub import snapshot_download
    patterns = [*SMALL, "*.safetensors"] if weights else SMALL
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                cache_dir=None if cache_dir is None else Path(cache_dir),
                token=token,
                local_files_only=local_files_only,
                allow_patterns=patterns,
            )
        )
    except errors.HFValidationError:
        raise FileNotFoundError(
            f"Invalid path_or_name: expected a folder or a name on the hub, got {name!r}: neither"
        ) from None
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"Invalid path_or_name: {name} is neither a local folder nor a repository on the hub that you may read"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(f"Invalid revision: {name} has no revision {revision!r} on the hub") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError) as error:
        why = "and local_files_only is set" if local_files_only else "and the hub could not be reached (no network?)"
        raise ConnectionError(
            f"Cannot load {name}: it is not a local folder, it is not in the download cache, {why}"
        ) from error
