"""The audit: whether texts written with speculation follow the target's distribution, and what rules could reach.

It looks at samplers from outside: exact enumeration on table models, sequential tests on real ones, black boxes over
HTTP. Nothing here decodes or speeds up anything.
"""
