"""The replay methods by name: one short file each."""

from rslib.methods.base import Batch, Joint, Method

METHODS: dict[str, type[Method]] = {
    "er": Method,
    "joint": Joint,
}

__all__ = ["METHODS", "Batch", "Method"]
