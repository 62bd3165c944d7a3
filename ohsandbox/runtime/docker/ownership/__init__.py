"""Leases of containers, held by the processes that own them, and removal of the networks and volumes of dead owners."""
