"""The version of jaxckpt, said once."""

__version__ = "0.2.0"
