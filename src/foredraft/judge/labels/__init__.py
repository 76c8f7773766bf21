"""Labels of tokens: mined, checked by programs, or given by people."""
