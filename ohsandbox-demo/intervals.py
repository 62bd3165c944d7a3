"""Merge overlapping intervals."""


def merge(intervals):
    """The same ground as few intervals as possible, sorted; touching ones become one."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
