"""Projections: what follows from the events of a log, one event at a time."""
