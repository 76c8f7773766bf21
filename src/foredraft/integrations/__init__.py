"""Bridges to other engines: heads from and to them, and foredraft inside them. Nothing else imports these."""
