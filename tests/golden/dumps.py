"""Golden stores as texts that can be reviewed: how a store is written to one, and made from one again.

Each holds the namespace as `<namespace>`, so that it can be restored beside others.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg
    import redis

HERE = "<namespace>"


def dump_sqlite(path: Path) -> str:
    """Write an SQLite file down as the statements that make it."""
    with closing(sqlite3.connect(path)) as db:
        return "\n".join(db.iterdump()) + "\n"


def restore_sqlite(text: str, path: Path) -> None:
    """Make the file."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(text)


def dump_redis(client: redis.Redis, prefix: str) -> str:
    """Write the keys below a prefix down as the commands that make them."""
    keys = sorted(key.decode() for key in client.scan_iter(match=f"*{prefix}*", count=1_000))
    commands = [command for key in keys for command in _commands(client, key)]
    lines = [json.dumps([_away(part, prefix) for part in command], ensure_ascii=False) for command in commands]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _commands(client: redis.Redis, key: str) -> list[list[str]]:
    kind = client.type(key).decode()
    if kind == "string":
        return [["SET", key, _text(client.get(key))]]
    if kind == "hash":
        return [["HSET", key, _text(name), _text(value)] for name, value in sorted(client.hgetall(key).items())]
    if kind == "set":
        return [["SADD", key, _text(member)] for member in sorted(client.smembers(key))]
    if kind == "zset":
        return [["ZADD", key, f"{score:.0f}", _text(m)] for m, score in client.zrange(key, 0, -1, withscores=True)]
    if kind == "stream":
        return [["XADD", key, _text(at), *map(_text, sum(row.items(), ()))] for at, row in client.xrange(key)]
    raise TypeError(f"{key} is a {kind}")


def _text(value: Any) -> str:  # noqa: ANN401 - what the driver gives
    return value.decode() if isinstance(value, bytes) else str(value)


def _away(part: str, prefix: str) -> str:
    if HERE in part:
        raise ValueError(f"{part!r} cannot be told from a place holder")
    return part.replace(prefix, HERE)


def restore_redis(text: str, client: redis.Redis, prefix: str) -> None:
    """Execute the commands."""
    pipe = client.pipeline(transaction=False)
    for command in json.loads(text):
        pipe.execute_command(*(part.replace(HERE, prefix) for part in command))
    pipe.execute()


def dump_postgres(connection: psycopg.Connection[Any], name: str) -> str:
    """Write the tables of a store down, which has this name in a schema of this name: how to make them, and rows."""
    from psycopg import sql

    from anarchon_tasks.stores import _postgres_schema as schema

    names = schema.Names(f"{name}.{name}")
    parts = [names.filled(statement) for statement in schema.tables().values()]
    for relation in names.relations:
        whole = sql.Identifier(names.schema, relation)
        found = connection.execute(sql.SQL("SELECT * FROM {}").format(whole))
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in found.description or ())
        for row in sorted(found.fetchall(), key=repr):
            values = sql.SQL(", ").join(map(sql.Literal, row))
            statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(whole, columns, values)
            parts.append(statement.as_string(connection))
    return ";\n".join(parts).replace(name, HERE) + ";\n"


def restore_postgres(text: str, connection: psycopg.Connection[Any], name: str) -> None:
    """Execute the statements; the schema is there."""
    connection.execute(text.replace(HERE, name).encode())
