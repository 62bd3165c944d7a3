"""The schema of a tool's arguments for the model."""

from __future__ import annotations

from typing import Any

from ohsandbox.tool.arguments import SECURITY_RISK, SECURITY_RISK_SCHEMA


def with_security_risk(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the optional argument `security_risk`, unless the tool has its own.

    It is first: a model writes arguments in order, so a truncated call still contains it.
    """
    if SECURITY_RISK in schema["properties"]:
        return schema
    return {**schema, "properties": {SECURITY_RISK: SECURITY_RISK_SCHEMA, **schema["properties"]}}
