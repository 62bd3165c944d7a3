"""What a conversation's agent works with.

`environment` is its sandbox and tools, `shared_runtime` the sandbox as sub-agents share it, `mcp_servers` the
configured MCP servers, and `skill_servers` those that the skills of the workspace bring.
"""
