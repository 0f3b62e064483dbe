"""The benchmark cases, one file a group; each registers itself when it is imported."""
