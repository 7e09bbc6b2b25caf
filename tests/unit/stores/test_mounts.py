"""Which file systems are shared between hosts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.stores import _mounts
from anarchon_tasks.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

MOUNTS = r"""
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
23 22 0:40 / /net rw shared:1 - nfs4 server:/export rw
24 23 0:41 / /net/local rw - xfs /dev/sdb1 rw
25 22 0:42 / /with\040space rw - cifs //server/share rw
26 22 0:43 / /home rw - fuse.sshfs host:/ rw
27 22 0:44 / /box rw - fuse.fuse-overlayfs overlay rw
28 22 0:45 / /twice rw - nfs server:/a rw
29 28 0:46 / /twice rw - ext4 /dev/sdc1 rw
""".strip()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/store.db", None),
        ("/net/store.db", "nfs4"),
        ("/network/store.db", None),
        ("/net/local/store.db", None),
        ("/with space/store.db", "cifs"),
        ("/home/me/store.db", "fuse.sshfs"),
        ("/box/store.db", None),
        ("/twice/store.db", None),
    ],
)
def test_kind_of_a_path(tmp_path: Path, path: str, kind: str | None) -> None:
    """The innermost and last mount that holds a path decides."""
    listed = tmp_path / "mountinfo"
    listed.write_text(MOUNTS)
    assert _mounts.network_filesystem(tmp_path.__class__(path), mountinfo=listed) == kind


def test_no_list_of_mounts(tmp_path: Path) -> None:
    """Where mounts are not listed, nothing is claimed of them."""
    assert _mounts.network_filesystem(tmp_path, mountinfo=tmp_path / "nothing") is None


def test_store_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A store on a network file system says so once."""
    monkeypatch.setattr(_mounts, "network_filesystem", lambda path: "nfs4" if path else None)
    store = SqliteStore(tmp_path / "store.db")
    with caplog.at_level(logging.WARNING, logger="anarchon_tasks.stores"):
        for _ in range(2):
            store.time()
            store.close()
    [record] = caplog.records
    assert "nfs4" in record.getMessage()
    assert record.filesystem == "nfs4"
