"""`Action` and `Observation`: a tool's input and output; and conversion to and from JSON Schema."""

from ohsandbox.content import Content, ImageContent, TextContent
from ohsandbox.schema.models import Action, ErrorObservation, Observation, Schema, TextObservation, text_of

__all__ = [
    "Action",
    "Content",
    "ErrorObservation",
    "ImageContent",
    "Observation",
    "Schema",
    "TextContent",
    "TextObservation",
    "text_of",
]
