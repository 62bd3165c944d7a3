"""Tool calls for models whose API has none: described in the prompt, written by the model as text, read from it.

    <call tool="execute_bash">
    <arg name="command">
    grep -n "TODO" -r src | head
    </arg>
    <arg name="timeout">20</arg>
    </call>

A value stands as it is, without quotes and escapes, so that code of many lines survives models that cannot write JSON.
`markup` writes and reads it, `values` types the values, `prompt` explains it, `history` turns a conversation into it.
"""

from ohsandbox.llm.text_calls.conversion import CallFilter, TextCalls

__all__ = ["CallFilter", "TextCalls"]
