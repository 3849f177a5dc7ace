"""The version of jaxckpt, said once."""

__version__ = "0.1.0"
