"""What a sandbox may reach: the list of hosts, the proxy that keeps it, and the tunnel that leads there."""
