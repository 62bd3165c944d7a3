"""Who owns which containers, networks and images of the engine, and removal of what a dead owner left."""
