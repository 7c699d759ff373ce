"""The OpenAPI document is complete and true: whatever fits it, or nearly does, is answered as it says."""

from __future__ import annotations

import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from tests.functional.admin.conftest import WRITER, Client
from tests.support.shop import Shop

ANGLED = str.maketrans("{}", "<>")
EXAMPLES = int(os.environ.get("TASKENGINE_TEST_EXAMPLES", "25"))
# Not that whatever fits is accepted: that two fields belong together can not be said there.
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_r13_every_route_is_in_the_document(shop: Shop, api: Client) -> None:
    """A call that is not described can not be found by anybody."""
    document = api.get("/openapi.json").json
    described = {(method.upper(), path.translate(ANGLED)) for path, calls in document["paths"].items() for method in calls}
    routes = {
        (method, rule.rule.removeprefix("/taskengine").replace("<taskengine_name:", "<"))
        for rule in shop.app.url_map.iter_rules()
        if rule.endpoint.startswith("taskengine.api_")
        for method in (rule.methods or set()) & {"GET", "POST", "DELETE"}
    }
    assert routes == described | {("GET", "/openapi.json")}


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_r13_the_document_is_true(shop: Shop) -> None:
    """No answer is a 5xx, and none has a status or a body that the document does not know."""
    document = Client(shop.app.test_client(), WRITER).get("/openapi.json").json
    schema = schemathesis.openapi.from_dict(document)
    schema.app = shop.app
    checked: list[str] = []
    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def hold(case: Any) -> None:
            answer = case.call(headers={"Authorization": f"Bearer {WRITER}"})
            assert answer.status_code < 500, answer.content
            case.validate_response(answer, checks=CHECKS)

        hold()
        checked.append(operation.label)
    assert len(checked) > 20
