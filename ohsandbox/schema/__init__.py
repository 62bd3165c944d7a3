"""`Action` and `Observation`: what goes into a tool and what comes out; and JSON Schema to and from them."""

from ohsandbox.content import Content, ImageContent, TextContent
from ohsandbox.schema.models import Action, ErrorObservation, Observation, Schema, TextObservation, text_of
from ohsandbox.schema.provider_schema import plain_schema

__all__ = [
    "Action",
    "Content",
    "ErrorObservation",
    "ImageContent",
    "Observation",
    "Schema",
    "TextContent",
    "TextObservation",
    "plain_schema",
    "text_of",
]
