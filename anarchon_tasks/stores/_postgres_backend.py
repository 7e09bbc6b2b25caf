"""The settings of a PostgreSQL store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anarchon_tasks._durations import Duration, to_ms
from anarchon_tasks.errors import ConfigError
from anarchon_tasks.stores import _postgres_forks, _urls
from anarchon_tasks.stores import _postgres_options as options
from anarchon_tasks.stores._backends import DEFAULT_TABLE
from anarchon_tasks.stores._postgres_schema import Names, ddl

if TYPE_CHECKING:
    from anarchon_tasks.clock import Clock
    from anarchon_tasks.stores._postgres_db import Database
    from anarchon_tasks.stores._postgres_options import Target
    from anarchon_tasks.stores._postgres_pool import Connections
    from anarchon_tasks.stores.postgres import PostgresStore


@dataclass(frozen=True, slots=True, repr=False)
class PostgresBackend:
    """A store in PostgreSQL.

    Args:
        postgres: A URL (`postgresql://`, `postgres://`), libpq's options as a mapping (`{"host": "db", "password":
            ...}`) or as a text (`"host=db dbname=shop"`), a pool, or a function without arguments that opens a
            connection of psycopg 3. A pool is anything with a context manager `connection()`; it stays open when the
            store closes. The connections that the function returns belong to the store, which closes them. By default
            what libpq takes from its environment.
        table: The name of the main table, with or without its schema (`shipping.cron_runs`, by default in `public`),
            and the head of the names of everything else. Several can live in one database.
        timeout: How long a call waits for its answer before it raises `StoreUnavailable`.
        create: Make the tables and functions when they are missing. Without, every call raises `StoreUnavailable` then.
        clock: What tells the time, for tests; the server's by default.

    `table` and `timeout` may also stand in the query of the URL, beside every option of libpq (`sslmode`,
    `sslrootcert`, `connect_timeout`, `target_session_attrs`, `application_name`, `options`, ...).

    """

    postgres: Target = None
    table: str = field(default=DEFAULT_TABLE, kw_only=True)
    timeout: Duration = field(default=5.0, kw_only=True)
    create: bool = field(default=True, kw_only=True)
    clock: Clock | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.postgres, str) and _urls.scheme_of(self.postgres) in options.SCHEMES:
            options.check_url(self.postgres)
            url, found = _urls.split_options(self.postgres, ours=("table", "timeout"), driver=None)
            defaults = {"table": DEFAULT_TABLE, "timeout": 5.0}
            given = {name: getattr(self, name) for name in defaults if getattr(self, name) != defaults[name]}
            for name, value in {"postgres": url, **_urls.merged(url, found, given)}.items():
                object.__setattr__(self, name, value)
        elif isinstance(self.postgres, Mapping):
            object.__setattr__(self, "postgres", dict(self.postgres))
        options.check_target(self.postgres)
        if options.is_pool(self.postgres):
            _postgres_forks.note(self.postgres)  # stores may be opened in other processes, later
        Names(self.table)
        if to_ms(self.timeout, option="timeout") <= 0:
            raise ConfigError(f"timeout={self.timeout!r} is too short: use 5 seconds, or what your server needs")

    def __repr__(self) -> str:
        return f"PostgresBackend(postgres={self._location()!r}, table={self.table!r})"

    def open(self) -> PostgresStore:
        """Return a store with these settings. It connects at its first call."""
        database = self.database()
        from anarchon_tasks.stores.postgres import PostgresStore  # noqa: PLC0415 - stores load when they are opened

        return PostgresStore(database, namespace=database.names.namespace, location=database.location)

    def database(self) -> Database:
        """Return the way to the tables, for `open` and for migrations. It connects at its first call."""
        try:
            from anarchon_tasks.stores._postgres_db import Database  # noqa: PLC0415 - an optional driver
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("anarchon_tasks"):
                raise
            raise ConfigError(options.INSTALL) from None
        timeout_s = to_ms(self.timeout, option="timeout") / 1_000
        return Database(
            self._connections(timeout_s),
            names=Names(self.table),
            location=self._location(),
            create=self.create,
            timeout_s=timeout_s,
            secrets=options.secrets(self._parameters(), self.postgres),
            clock=self.clock,
        )

    def statements(self) -> list[str]:
        """Return the SQL that makes the tables and functions, in order, for one transaction."""
        return ddl(Names(self.table))

    def _connections(self, timeout_s: float) -> Connections:
        from anarchon_tasks.stores import _postgres_pool as pools  # noqa: PLC0415 - an optional driver

        target = self.postgres
        if target is None or isinstance(target, str | Mapping):
            return pools.OwnPool(pools.connecting(self._parameters()), timeout_s=timeout_s)
        if options.is_pool(target):
            return pools.GivenPool(target)  # type: ignore[arg-type]
        return pools.OwnPool(target, timeout_s=timeout_s)  # type: ignore[arg-type]

    def _parameters(self) -> dict[str, Any]:
        target = self.postgres
        if target is None or isinstance(target, str | Mapping):
            return options.parameters(target)
        return options.given_parameters(target)

    def _location(self) -> str:
        found = self._parameters()
        if found or self.postgres is None:
            return options.location(found)
        return f"postgresql:// ({getattr(self.postgres, '__name__', type(self.postgres).__name__)})"
