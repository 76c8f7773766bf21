"""Problems whose answers can be checked."""
