"""`Action` and `Observation`: a tool's input and output; and conversion to and from JSON Schema."""

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
