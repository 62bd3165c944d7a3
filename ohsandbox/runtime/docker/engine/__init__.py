"""The connection to a Docker engine: its address, its transports (Unix socket, TCP, TLS, ssh) and its errors."""
