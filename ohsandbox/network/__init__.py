"""Connections into and out of a sandbox, and what it may reach: `policy` decides, `proxy` keeps to it, `audit` records.

programs/       C programs of ours that run inside: the connector and the gateway
tunnel/         TCP connections through the connector; ports of the sandbox here, and of this machine there
proxy/          what the tunnel leads to where the network is an allowlist
credentials/    the requests that it gives a person's credential
package_hosts   the hosts of the rule `packages`
"""
