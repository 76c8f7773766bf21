"""The executor whose passes are compiled C++, for CPUs."""
