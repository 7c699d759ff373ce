"""Commands for whoever deploys the app."""

from __future__ import annotations

from dataclasses import asdict

import click

from ..engine.presentation import printable
from ..runtime import deployment
from ..runtime.deployment import Finding, Level
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


@command()
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@json_option
def check(strict: bool, as_json: bool) -> None:
    """Say what is wrong with this deployment.

    Looks at settings, connection pool, database, clock, schema, workers, task types and wake-ups. The exit code is 1
    if anything is an error.

    Example: flask taskengine check --json
    """
    findings = deployment.check(current_host())
    worst = {finding.level for finding in findings}
    wrong = Level.ERROR in worst or (strict and Level.WARNING in worst)
    value = {"ok": not wrong, "findings": [asdict(finding) for finding in findings]}
    answer(as_json, value, "\n".join(map(_line, findings)))
    if wrong:
        click.get_current_context().exit(1)


def _line(finding: Finding) -> str:
    text = f"{finding.level:7}  {finding.about:9}  {finding.text}"
    return printable(f"{text}\n{'':20}-> {finding.remedy}" if finding.remedy else text)
