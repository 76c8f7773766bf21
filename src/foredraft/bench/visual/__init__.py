"""Images that methods drew, compared: speed, accepted length, and how good they are."""
