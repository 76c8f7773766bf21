"""Who can say where an answer goes wrong: several sources with one interface."""
