"""How a worker connects for itself."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from flask_taskengine.runtime.database import own_engine
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
