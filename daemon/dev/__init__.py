"""What a person needs to try and test mailslot without installing anything: PostgreSQL, an inbox, and a guided run.

Nothing here is imported by the daemon. Needs the extra `mailslot[dev]`.
"""
