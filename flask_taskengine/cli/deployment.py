"""Commands for whoever deploys the app."""

from __future__ import annotations

import click

from ..store import migrations
from .command import answer, command, current_host, json_option


@command()
@click.option("--sql", is_flag=True, allow_from_autoenv=False, help="Print the DDL for the app's database; connect to nothing.")
@json_option
def migrate(sql: bool, as_json: bool) -> None:
    """Bring the tables up to date.

    Creates the engine's tables, indexes and triggers in the app's database, or brings them to the revision that this
    version needs. Any number of processes may run it at once; where there is nothing to do it changes nothing.

    Example: flask taskengine migrate --sql > taskengine.sql
    """
    host = current_host()
    engine = host.sql_engine()
    if sql:
        script = migrations.ddl(host.names, engine.dialect.name)
        answer(as_json, {"sql": script}, script.rstrip())
        return
    done = migrations.migrate(engine, host.names)
    answer(as_json, {"before": done.before, "after": done.after, "repairs": list(done.repairs)}, _told(done))


def _told(done: migrations.Migration) -> str:
    mended = [f"mended: {repair}" for repair in done.repairs]
    if done.before == done.after:
        return "\n".join(mended) or f"nothing to do: the schema is at revision {done.after}"
    return "\n".join([f"migrated from {done.before or 'an empty database'} to revision {done.after}", *mended])
