"""The API against its own schema: whatever schemathesis makes up is answered as the schema says, and never with 500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.conftest import FULL
from tests.served import TEXT, running, save_model


def answers_for_itself(context: Any, response: Any, case: Any) -> None:
    """Nothing is a bug; a request that asks for no time at all is told that it took too long (504)."""
    assert response.status_code < 500 or response.status_code == 504, response.text


CHECKS = [answers_for_itself, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 300 if FULL else 12


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("schema")
    save_model(folder / "toy", TEXT)
    limits = {"beam": 4, "nbest": 4, "max_length": 50, "timeout": 60, "alternatives": 10}
    with running(folder, models=[{"folder": "toy"}], limits=limits, log="none") as server:
        yield schemathesis.openapi.from_url(f"{server.client.base_url}/openapi.json")


def test_the_api_is_what_its_schema_says(api: Any) -> None:
    quick = settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=not FULL,
        database=None,
    )
    operations = [result.ok() for result in api.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/v1/generate", "/v1/score", "/v1/models", "/health"}
    for operation in operations:

        @quick
        @given(case=operation.as_strategy())
        def answered(case: Any) -> None:
            case.call_and_validate(checks=CHECKS)

        answered()
