"""The command `anarchon`: looks into a store, and into the future, and makes stores. It needs none of your code.

Exit codes: 0 done, 1 the store does not answer or does not know the job, 2 wrong usage or configuration.
"""

from __future__ import annotations

import click

from anarchon_tasks.cli._explain import explain
from anarchon_tasks.cli._failures import SafeGroup
from anarchon_tasks.cli._jobs import jobs
from anarchon_tasks.cli._migrate import migrate
from anarchon_tasks.cli._next import next_slots
from anarchon_tasks.cli._runs import history

__all__ = ["main"]


@click.group(cls=SafeGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="anarchon-tasks", message="anarchon-tasks %(version)s")
def main() -> None:
    """See what your schedulers do: jobs, coming slots, and what became of past ones.

    \b
    anarchon jobs --store redis://cache:6379/1
    anarchon history digest -n 5
    anarchon explain "0 8 * * 1-5" --tz Europe/Athens

    The store can also be named by the environment: ANARCHON_STORE, with ANARCHON_PREFIX (Redis, Valkey) or
    ANARCHON_TABLE (PostgreSQL, SQLite) where they are not the default.

    Every command has --json. Exit codes: 0 done, 1 the store does not answer or does not know the job, 2 wrong usage
    or configuration.
    """  # noqa: D301 - \b keeps click from joining the lines


main.add_command(jobs)
main.add_command(next_slots)
main.add_command(history)
main.add_command(explain)
main.add_command(migrate)
