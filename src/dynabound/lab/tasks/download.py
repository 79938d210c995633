"""Downloads: from the first mirror that answers, checked before use, complete or not at all."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynabound._extras import need
from dynabound._files import write_whole
from dynabound.lab.tasks.catalog import SOURCES, folder_of
from dynabound.lab.tasks.datasets import CIFAR_FOLDER, DataError, data_home, search_path


def ensure_downloaded(name: str, data_dir: str | Path | None = None) -> None:
    """Download the data set unless it is present; of several processes, one downloads and the others wait."""
    if name not in SOURCES or _complete(name, data_dir):
        return
    from filelock import FileLock  # torch requires it, too

    home = data_home(data_dir)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / f".{folder_of(name)}.lock"):
            if not _complete(name, data_dir):
                download(name, data_dir)
    except OSError as error:
        raise DataError(f"{name}: cannot write to {home} ({error.strerror}); give another --data-dir") from error


def _complete(name: str, data_dir: str | Path | None) -> bool:
    return any(
        all((folder / file).is_file() or (folder / f"{file}.gz").is_file() for file in SOURCES[name].files)
        for folder in search_path(name, data_dir)
    )


def check_source(name: str) -> None:
    """Raise DataError unless the data set ``name`` can be downloaded."""
    if name not in SOURCES:
        raise DataError(f"data set {name!r}: nothing to fetch; must be one of {', '.join(SOURCES)}")


def download(name: str, data_dir: str | Path | None = None, progress: Callable[[str], Any] | None = None) -> Path:
    """Download the data set ``name`` and return its folder; intact files are not downloaded again.

    ``progress`` is called with a file's name and returns an object with tqdm's ``total``, ``update``, ``reset``,
    ``close``.
    """
    check_source(name)
    folder = data_home(data_dir) / folder_of(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, digest in SOURCES[name].downloads.items():
            path = _download(name, file, digest, folder, progress)
            if SOURCES[name].kind == "cifar":
                folder = _extract(name, path)
    except OSError as error:
        raise DataError(
            f"{name}: cannot write to {folder} ({error.strerror or error}); give another --data-dir"
        ) from error
    return folder


def _download(name: str, file: str, digest: str, folder: Path, progress: Callable[[str], Any] | None) -> Path:
    pooch, requests = need("pooch", "lab"), need("requests", "lab")
    pooch.get_logger().setLevel("ERROR")
    failures = []
    for mirror in SOURCES[name].mirrors:
        downloader = pooch.HTTPDownloader(progressbar=progress(file) if progress else False, timeout=30)
        try:
            # pooch writes to a temporary file, checks it, and only then moves it to its name.
            known = f"{'sha256' if len(digest) == 64 else 'md5'}:{digest}"
            return Path(pooch.retrieve(mirror + file, known, file, folder, downloader=downloader))
        except (requests.RequestException, ValueError) as error:
            failures.append(f"{mirror}: {error}".splitlines()[0])
    raise DataError(
        f"{name}: {file} could not be fetched ({'; '.join(failures)}); "
        f"try again later, or put it into {folder} yourself"
    )


def _extract(name: str, archive: Path) -> Path:
    """Extract the known files from an archive whose checksum is right."""
    folder = archive.parent / CIFAR_FOLDER
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        for file in SOURCES[name].files:
            member = tar.extractfile(f"{folder.name}/{file}")
            write_whole(folder / file, member.read())  # type: ignore[union-attr]  # None stands for a folder
    return folder
