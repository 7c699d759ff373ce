"""What can be seen of the engine from outside. Driven by its signals; the engine does not know it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..domain.errors import ConfigError
from ..runtime.host import Host
from . import logs


def switch_on(host: Host) -> None:
    """Begin what the settings of an app ask for; only then are the libraries for it imported.

    Raises:
        ConfigError: a library is not installed.
    """
    logs.connect()
    if host.settings.tracing:
        with _needs("TRACING", "opentelemetry"):
            from . import tracing
        host.tracing = tracing.Tracer(host.settings.tracing)
        logs.trace_fields = tracing.record_fields
    if host.settings.metrics:
        with _needs("METRICS", "prometheus"):
            from . import metrics
        metrics.register_host(host)


@contextmanager
def _needs(setting: str, extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        remedy = f"pip install 'flask-taskengine[{extra}]', or leave the setting out"
        raise ConfigError([f"TASKENGINE_{setting} is on, but {error.name} is not installed: {remedy}"]) from error
