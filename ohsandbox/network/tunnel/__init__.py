"""TCP connections through the connector: `frames` on a channel, a `stream` for each connection, `ports` for users."""
