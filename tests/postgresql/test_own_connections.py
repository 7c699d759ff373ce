"""How a worker connects for itself."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine.runtime.database import keep_connections, own_engine
from tests.support.hosts import MakeApp


def test_own_connections_are_not_tried_for_ever(postgresql_url: str, make_app: MakeApp) -> None:
    """A network that swallows packets must not hold a loop for minutes; the host's own connections stay as they are."""
    app, _, engine = make_app(postgresql_url)
    host = engine.host(app)
    own = own_engine(host)
    seen: list[Any] = []
    sa.event.listen(host.sql_engine(), "do_connect", lambda dialect, record, args, named: seen.append(named.get("connect_timeout")))
    host.sql_engine().connect().close()
    own.connect().close()
    assert seen == [None, 10]


def test_a_connect_timeout_of_the_host_holds(postgresql_url: str, make_app: MakeApp) -> None:
    """What the address says wins."""
    url = sa.make_url(postgresql_url).update_query_dict({"connect_timeout": "7"}).render_as_string(hide_password=False)
    app, _, engine = make_app(url)
    host = engine.host(app)
    own = own_engine(host)
    seen: list[Any] = []
    sa.event.listen(host.sql_engine(), "do_connect", lambda dialect, record, args, named: seen.append(named.get("connect_timeout")))
    own.connect().close()
    assert seen == ["7"]


@pytest.mark.parametrize(
    ("pool", "tasks", "kept", "most"),
    [
        ({}, 10, 10, 15),
        ({"pool_size": 5, "max_overflow": 2}, 10, 7, 7),
        ({"pool_size": 20}, 10, 20, 30),
        ({"pool_size": 5, "max_overflow": -1}, 50, 50, None),
        ({"poolclass": sa.NullPool}, 10, None, None),
    ],
)
def test_a_worker_keeps_a_connection_for_each_task(
    make_app: MakeApp, postgresql_url: str, pool: dict[str, Any], tasks: int, kept: int | None, most: int | None
) -> None:
    """As many as run at once, never more than the app's pool may open; a pool of another kind stays as it is."""
    host = make_app(postgresql_url, SQLALCHEMY_ENGINE_OPTIONS=pool)
    keep_connections(host.engine.host(host.app), tasks)
    with host.app.app_context():
        found: Any = host.db.engine.pool
        if kept is None:
            assert isinstance(found, sa.NullPool)
            return
        assert found.size() == kept
        held = [found.connect() for _ in range(min(tasks, kept) if most is None else most)]
        if most is not None:
            found._timeout = 0.01
            with pytest.raises(sa.exc.TimeoutError):
                found.connect()
        for one in held:
            one.close()
        assert found.checkedin() == min(kept, len(held))
