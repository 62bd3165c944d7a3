"""TCP connections through the connector: `frames` on a channel, `stream` for each connection, `ports` for people."""
