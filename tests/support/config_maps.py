"""Files of a Kubernetes ConfigMap, as the kubelet mounts and updates them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path


def kubelet_writes(folder: Path, files: Mapping[str, str], version: str) -> None:
    """Write as Kubernetes' AtomicWriter does: files in a new folder, one renamed link to it, a link for each file."""
    old = folder / (folder / "..data").readlink() if (folder / "..data").is_symlink() else None
    fresh = folder / f"..2026_{version}"
    for name, text in files.items():
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        (fresh / name).write_text(text)
    (folder / "..data_tmp").symlink_to(fresh.name)
    (folder / "..data_tmp").rename(folder / "..data")
    shown = {name.partition("/")[0] for name in files}
    for name in shown:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    for path in folder.iterdir():
        if path.is_symlink() and not path.name.startswith("..") and path.name not in shown:
            path.unlink()
    if old:
        shutil.rmtree(old)
