"""Questions: tasks, the files that hold them, and the formats of those files."""
