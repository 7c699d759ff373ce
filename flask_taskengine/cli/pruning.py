"""The command that removes tasks which have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from ..domain.durations import seconds
from ..domain.states import ENDED, TaskStatus
from ..engine.retention import Rule, rules
from ..runtime.host import Host
from ..runtime.pruner import prune_now
from ..store.retention import count_ended
from .command import answer, command, current_host, json_option


def _duration(ctx: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
    try:
        return None if given is None else seconds(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@command()
@click.option("--older-than", callback=_duration, allow_from_autoenv=False, help='Since their end, such as "30d" [TASKENGINE_RETENTION].')
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(sorted(ENDED), case_sensitive=False),
    allow_from_autoenv=False,
    help="Only these; may be given again [those that TASKENGINE_RETENTION does not keep for ever].",
)
@click.option("--dry-run", is_flag=True, allow_from_autoenv=False, help="Only count what would be removed.")
@json_option
def prune(older_than: float | None, statuses: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Delete or archive tasks that have ended.

    Workers do the same every hour, by TASKENGINE_RETENTION. May be run at any time and beside the workers; tasks that
    are in use are left for the next run.

    Example: flask taskengine prune --status dead --older-than 90d
    """
    host = current_host()
    chosen = rules(host.settings.retention, [TaskStatus(status.upper()) for status in statuses], older_than)
    counts = _counted(host, chosen) if dry_run else prune_now(host, chosen)
    answer(
        as_json, {"dry_run": dry_run, "pruned": {str(status): number for status, number in counts.items()}}, _told(chosen, counts, dry_run)
    )


def _counted(host: Host, chosen: Sequence[Rule]) -> dict[TaskStatus, int]:
    engine = host.sql_engine()
    tables = host.dialect(engine.dialect.name).tables
    with engine.connect() as connection:
        return {rule.status: count_ended(connection, tables, rule.status, rule.kept_for) for rule in chosen}


def _told(chosen: Sequence[Rule], counts: Mapping[TaskStatus, int], dry_run: bool) -> str:
    if not chosen:
        return "nothing to do: TASKENGINE_RETENTION keeps every task for ever; say which to remove with --status and --older-than"
    verbs = {True: "archive", False: "delete"} if dry_run else {True: "archived", False: "deleted"}
    lines = [f"{verbs[rule.archive]} {counts[rule.status]} {rule.status}" for rule in chosen]
    return ("would " if dry_run else "") + ", ".join(lines)
