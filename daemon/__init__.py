"""mailslot: delivers the e-mail jobs of an application out of its PostgreSQL."""

__version__ = "0.1.0"
