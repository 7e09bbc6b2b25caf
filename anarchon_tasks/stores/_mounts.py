"""Which file system a path is on."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

_NETWORK = frozenset({"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs"})
_LOCAL = frozenset({"fuse.fuse-overlayfs"})


def network_filesystem(path: Path, *, mountinfo: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Return the type of the file system that holds the path when it may be shared by several hosts.

    Args:
        path: An absolute path; it need not exist.
        mountinfo: Where the mounts of this process are listed. None are known where that file does not exist.

    """
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    target = PurePosixPath(path.resolve())
    best, kind = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        place = PurePosixPath(_unescaped(before.split(" ")[4]))
        if target.is_relative_to(place) and len(place.parts) >= best:
            best, kind = len(place.parts), after.split(" ")[0]
    network = kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL)
    return kind if network else None


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
