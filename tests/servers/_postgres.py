"""PostgreSQL servers of the tests' own, and a pooler before one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.servers._missing import missing
from tests.servers._ports import HOST, accepts_connections
from tests.servers._process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_USER = "postgres"


def answers_postgres(url: str) -> bool:
    """Say whether a PostgreSQL server lets us in at this address."""
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=2):
            return True
    except psycopg.OperationalError:
        return False


class _NotAsRoot(ServerProcess):
    """A server that refuses to run as root: then it runs as the user of Debian's package, in a folder of that user."""

    def __init__(self, directory: Path, *, port: int | None = None) -> None:
        if os.geteuid() == 0:
            directory = Path(tempfile.mkdtemp(prefix=f"anarchon-{self.name}-"))
            shutil.chown(directory, _USER, _USER)
            weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        super().__init__(directory, port=port)
        self.directory.mkdir(parents=True, exist_ok=True)

    def as_user(self, *command: str | Path) -> list[str | Path]:
        """Return a command that runs as the user that the server runs as."""
        if os.geteuid() != 0:
            return list(command)
        return ["setpriv", "--reuid", _USER, "--regid", _USER, "--clear-groups", "--", *command]

    @property
    def url(self) -> str:
        """The address of the database `postgres` there."""
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    def ready(self) -> bool:
        """Say whether the server answers."""
        return accepts_connections(self.port) and answers_postgres(self.url)


class PostgresServer(_NotAsRoot):
    """A cluster of one's own, from the machine's PostgreSQL. Everybody is let in as `postgres`.

    It does not wait for the disk, so it forgets at a power loss, but not when its processes are killed.

    Args:
        directory: Holds its data and its log, unless the tests run as root.
        port: A free one by default.
        options: More of the server's settings, such as `max_connections=5`.
        access: Lines of pg_hba.conf that come before the one that lets everybody in.
    """

    name = "postgres"

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        options: Sequence[str] = (),
        access: Sequence[str] = (),
    ) -> None:
        super().__init__(directory, port=port)
        self.options = list(options)
        self.access = list(access)

    @staticmethod
    def folder() -> Path | None:
        """Return where the programs are: those on the path, else the newest of Debian's."""
        if found := shutil.which("initdb"):
            return Path(found).resolve().parent  # a link to it may stand alone
        versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
        return max((path.parent for path in versions), key=lambda folder: float(folder.parent.name), default=None)

    @classmethod
    def program(cls, name: str) -> Path:
        """Return where one of the programs is."""
        folder = cls.folder()
        if folder is None:
            missing(cls.name, cls.how_to_have())
        return folder / name

    @staticmethod
    def how_to_have() -> str:
        """Say what to do when the programs are missing."""
        return "install PostgreSQL (Debian, Ubuntu: apt-get install postgresql)"

    @property
    def data(self) -> Path:
        """The folder of the cluster."""
        return self.directory / "data"

    def command(self) -> list[str | Path]:
        """Return the command that runs the server in the foreground; makes its data before."""
        if not self.data.exists():
            self._init()
        settings = [f"port={self.port}", f"listen_addresses={HOST}", "unix_socket_directories=", "fsync=off"]
        options = [part for setting in [*settings, *self.options] for part in ("-c", setting)]
        return self.as_user(self.program("postgres"), "-D", self.data, *options)

    def _init(self) -> None:
        init = self.as_user(self.program("initdb"), "-D", self.data, "-A", "trust", "-U", "postgres", "--no-sync")
        made = subprocess.run([*init, "-E", "UTF8", "--locale=C"], check=False, capture_output=True, text=True, cwd="/")
        assert made.returncode == 0, made.stdout + made.stderr
        access = self.data / "pg_hba.conf"
        access.write_text("\n".join([*self.access, access.read_text(encoding="utf-8")]), encoding="utf-8")

    def standby(self, directory: Path) -> PostgresServer:
        """Return a copy that follows this server once it is started; `SELECT pg_promote()` makes it a primary."""
        copy = PostgresServer(directory)
        source = f"host={HOST} port={self.port} user=postgres application_name={copy.directory.name}"
        made = subprocess.run(
            copy.as_user(self.program("pg_basebackup"), "-D", copy.data, "-d", source, "-R", "-c", "fast", "-N"),
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
        )
        assert made.returncode == 0, made.stdout + made.stderr
        return copy

    def stop(self) -> None:
        """End the server and its connections in an orderly way. Fine when it does not run."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it like a crash (`pg_ctl stop -m immediate`): the next start recovers. Fine when it does not run."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if not self.running:
            return
        self.resume()
        self.process.signal(number)
        try:
            self.process.wait()
        except AssertionError:
            self.process.kill()

    def pause(self) -> None:
        """Stop all its processes with SIGSTOP: connections stay open and nothing answers."""
        self._each(psutil.Process.suspend)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._each(psutil.Process.resume)

    def _each(self, do: Callable[[psutil.Process], None]) -> None:
        """Do it to the first process and to those that it started, each of which has a group of its own."""
        first = psutil.Process(self.process.pid)
        do(first)
        for child in first.children(recursive=True):
            try:
                do(child)
            except psutil.NoSuchProcess:
                continue


class PgBouncer(_NotAsRoot):
    """A pooler that gives each transaction another one of a few server connections.

    Args:
        directory: Holds its settings and its log, unless the tests run as root.
        server_port: The port of the PostgreSQL server behind it.
        pool_size: How many server connections its clients share.
        port: A free one by default.
        pool_mode: When it gives a client another session.
    """

    name = "pgbouncer"

    def __init__(
        self,
        directory: Path,
        *,
        server_port: int,
        pool_size: int = 4,
        port: int | None = None,
        pool_mode: str = "transaction",
    ) -> None:
        super().__init__(directory, port=port)
        self.pool_mode = pool_mode
        self.server_port = server_port
        self.pool_size = pool_size

    @staticmethod
    def binary() -> Path | None:
        """Return where the program is, or None."""
        found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        return Path(found) if found else None

    @staticmethod
    def how_to_have() -> str:
        """Say what to do when the program is missing."""
        return "install pgbouncer (Debian, Ubuntu: apt-get install pgbouncer)"

    def command(self) -> list[str | Path]:
        """Return the command that runs the pooler in the foreground; writes its settings before."""
        binary = self.binary()
        if binary is None:
            missing(self.name, self.how_to_have())
        users, settings = self.directory / "users.txt", self.directory / "pgbouncer.ini"
        users.write_text('"postgres" ""\n', encoding="utf-8")
        lines = [
            "[databases]",
            f"* = host={HOST} port={self.server_port}",
            "[pgbouncer]",
            f"listen_addr = {HOST}",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = trust",
            f"auth_file = {users}",
            f"pool_mode = {self.pool_mode}",
            f"default_pool_size = {self.pool_size}",
            "server_login_retry = 0",
        ]
        settings.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return self.as_user(binary, settings)
