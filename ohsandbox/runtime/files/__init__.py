"""Files of a sandbox: read, write and list over a worker; upload and download as tar over a channel."""
