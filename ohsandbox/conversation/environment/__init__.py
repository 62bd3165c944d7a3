"""The environment in which a conversation's agent works.

`conversation_environment` has its sandbox and tools, `shared_runtime` the sandbox as sub-agents share it, `mcp_servers`
the configured MCP servers, and `skill_servers` those of the workspace's skills.
"""
