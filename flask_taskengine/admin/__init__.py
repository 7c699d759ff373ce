"""What operators use: the REST API and the dashboard. Imported only where ``TASKENGINE_API_ENABLED`` is on."""

from __future__ import annotations

from ..domain.errors import ConfigError
from ..runtime.host import Host


def serve(host: Host) -> None:
    """Give an app the admin blueprint.

    Raises:
        ConfigError: a library is not installed.
    """
    try:
        from .blueprint import make_blueprint
    except ModuleNotFoundError as error:
        remedy = "pip install 'flask-taskengine[admin]', or leave the setting out"
        raise ConfigError([f"TASKENGINE_API_ENABLED is on, but {error.name} is not installed: {remedy}"]) from error
    host.app.register_blueprint(make_blueprint(host), url_prefix=host.settings.api_url_prefix or None)
