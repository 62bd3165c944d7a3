"""Network connections of a sandbox: `policy` decides which are allowed, `proxy` enforces it, `audit` records them.

programs/       C programs that run in the sandbox: the connector and the gateway
tunnel/         TCP connections through the connector: ports of the sandbox on this machine, and of this machine inside
proxy/          the proxy behind the tunnel, for the network `allowlist`
credentials/    adds a user's credentials to requests on their way out
package_hosts   the hosts of the rule `packages`
"""
