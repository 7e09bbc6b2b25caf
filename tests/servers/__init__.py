"""Real servers, faulty networks and owned subprocesses for the tests.

Everything listens on 127.0.0.1, on a port and in a directory of its own, and is ended by the code that started it.
"""

from __future__ import annotations

from tests.servers._missing import missing
from tests.servers._ports import accepts_connections, free_port
from tests.servers._postgres import PgBouncer, PostgresServer, answers_postgres
from tests.servers._process import OwnedProcess, ProcessOwner, ServerProcess
from tests.servers._proxy import TcpProxy
from tests.servers._redis import RedisServer, ValkeyServer, answers_ping
from tests.servers._redis_cluster import RedisCluster
from tests.servers._redis_sentinel import RedisWithSentinels
from tests.servers._redis_tls import Certificates, TlsRedisServer
from tests.servers._redis_versions import Redis5Server, Redis62Server, Redis86Server, Valkey8Server
from tests.servers._waiting import poll_until

__all__ = [
    "Certificates",
    "OwnedProcess",
    "PgBouncer",
    "PostgresServer",
    "ProcessOwner",
    "Redis5Server",
    "Redis62Server",
    "Redis86Server",
    "RedisCluster",
    "RedisServer",
    "RedisWithSentinels",
    "ServerProcess",
    "TcpProxy",
    "TlsRedisServer",
    "Valkey8Server",
    "ValkeyServer",
    "accepts_connections",
    "answers_ping",
    "answers_postgres",
    "free_port",
    "missing",
    "poll_until",
]
