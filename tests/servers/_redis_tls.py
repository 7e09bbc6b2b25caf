"""A Redis that speaks TLS alone, and the certificates for it."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tests.servers._ports import HOST
from tests.servers._redis import RedisServer

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of one authority: its own certificate, a server's, and a client's."""

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path

    @classmethod
    def make(cls, directory: Path, host: str = HOST) -> Self:
        """Make an authority and what it signs.

        Args:
            directory: Gets the files.
            host: The name or address that the server's certificate is for.
        """
        import trustme  # tests without it do not come by here

        directory.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        for name, issued in (("server", authority.issue_cert(host)), ("client", authority.issue_cert("worker@cache"))):
            issued.private_key_pem.write_to_path(str(directory / f"{name}.key"))
            for part in issued.cert_chain_pems:
                part.write_to_path(str(directory / f"{name}.pem"), append=True)
        names = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
        return cls(*(directory / name for name in names))


class TlsRedisServer(RedisServer):
    """The machine's `redis-server` behind TLS; without a client certificate nobody comes in.

    Args:
        directory: Holds its data, its log, and the certificates.
        host: The name or address that its certificate is for.
    """

    name = "redis-tls"
    scheme = "rediss"

    def __init__(self, directory: Path, *, host: str = HOST) -> None:
        super().__init__(directory)
        self.files = Certificates.make(directory, host)

    def command(self) -> list[str | Path]:
        """Return the command that runs the server in the foreground."""
        files = self.files
        command = super().command()
        place = command.index("--port")
        command[place : place + 2] = ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "yes"]
        command += ["--tls-cert-file", files.server_cert, "--tls-key-file", files.server_key]
        return [*command, "--tls-ca-cert-file", files.ca]

    def ready(self) -> bool:
        """Say whether the server answers a client that it trusts."""
        context = ssl.create_default_context(cafile=str(self.files.ca))
        context.check_hostname = False
        context.load_cert_chain(self.files.client_cert, self.files.client_key)
        try:
            with (
                socket.create_connection((HOST, self.port), timeout=0.5) as plain,
                context.wrap_socket(plain) as connection,
            ):
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
