"""What a container reaches: the allowlist and its proxy, the open network, and network namespaces."""
