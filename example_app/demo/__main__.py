"""``make demo``: the web app and a worker, until Ctrl-C; with ``DEMO=once`` ten orders and what became of them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import sqlalchemy as sa

from .. import create_app, database_url
from .programs import ROOT, DemoFailed, Interrupted, Programs
from .ten_orders import place_ten, report, watch

FOLDER = Path(os.environ.get("SHOP_FOLDER") or ROOT / "demo-data")
START = 60.0
"""Seconds that the programs have to start."""
TASKS = 60.0
"""Seconds that the tasks of ten orders have to end."""


def main() -> int:
    """Run the demo; return its exit code."""
    once = os.environ.get("DEMO") == "once"
    try:
        return run_once() if once else run_until_interrupted()
    except DemoFailed as error:
        click.echo(str(error), err=True)
        return 1
    except Interrupted:
        click.echo("The web app and the worker are stopped.")
        return 130 if once else 0


def run_until_interrupted() -> int:
    """Show the shop until somebody presses Ctrl-C."""
    FOLDER.mkdir(exist_ok=True)
    with Programs(environment(FOLDER)) as programs:
        address = start_web(programs, FOLDER)
        click.echo(f"\n  The shop:   {address}\n  Its tasks:  {address.rstrip('/')}/taskengine/\n  Its data:   {where(FOLDER)}")
        click.echo("  Ctrl-C stops it. This is what the worker does:\n")
        programs.start("taskengine", "worker")
        while True:
            programs.wait(1.0)


def run_once() -> int:
    """Place ten orders, wait for their tasks, and say whether the promise was kept."""
    with new_folder() as folder, Programs(environment(folder)) as programs:
        address = start_web(programs, folder)
        worker = programs.start("taskengine", "worker", log=folder / "worker.log")
        click.echo(f"The shop and a worker run on {where(folder)}.")
        placed = place_ten(address)
        click.echo("10 orders are placed; 3 of them failed after their tasks were enqueued. Waiting for the tasks.\n")
        kept = report(watch(create_app({"SHOP_FOLDER": str(folder)}), placed, TASKS, programs.wait))
        if not kept:
            click.echo(f"\nThis is not what was promised. The worker printed:\n{worker.printed}", err=True)
        return 0 if kept else 1


def start_web(programs: Programs, folder: Path) -> str:
    """Make the tables, start the web app on a free port and return its address."""
    programs.run("taskengine", "migrate", log=folder / "migrate.log")
    programs.run("create-tables", log=folder / "create-tables.log")
    web = programs.start("run", "--port", "0", "--no-reload", "--no-debugger", log=folder / "web.log")
    return programs.wait_for_line(web, r"Running on (http://\S+)", START)[1]


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of the programs."""
    return {"SHOP_FOLDER": str(folder), "FLASK_DEBUG": "0"}


@contextmanager
def new_folder() -> Iterator[Path]:
    """Give a folder that did not exist before and is removed afterwards, so that an earlier run leaves no trace in this one."""
    with tempfile.TemporaryDirectory(prefix="taskengine-demo-") as folder:
        yield Path(folder)


def where(folder: Path) -> str:
    """Say where the data is, without the password."""
    url = sa.make_url(database_url(os.environ.get("DATABASE_URL")))
    return f"SQLite in {folder}" if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True)


if __name__ == "__main__":
    sys.exit(main())
