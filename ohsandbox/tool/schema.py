"""The arguments of a tool as a model is offered them."""

from __future__ import annotations

from typing import Any

from ohsandbox.tool.arguments import SECURITY_RISK, SECURITY_RISK_SCHEMA


def with_security_risk(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the optional argument `security_risk`, unless the tool has one of its own.

    It stands first: a model writes arguments in their order, and one that is cut short has said it by then.
    """
    if SECURITY_RISK in schema["properties"]:
        return schema
    return {**schema, "properties": {SECURITY_RISK: SECURITY_RISK_SCHEMA, **schema["properties"]}}
