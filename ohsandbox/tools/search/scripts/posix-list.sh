limited find . "$@" | stats
