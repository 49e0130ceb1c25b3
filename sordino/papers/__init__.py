"""A file a paper: its tables and figures as small functions of the public API."""
