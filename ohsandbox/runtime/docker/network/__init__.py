"""The network of a container: the allowlist and its proxy, the open network, and network namespaces."""
