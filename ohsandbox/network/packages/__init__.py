"""Where the package tools of this person and machine download from, which the rule `packages` allows."""
