"""The replay methods by name: one short file each, and your own.

`@register("name")` takes a subclass of `Method`, or a function of the method's arguments that makes one.
"""

from rslib.methods.agem import AGEM
from rslib.methods.der import DER, DERpp
from rslib.methods.er import Batch, Joint, Method
from rslib.methods.er_ring import ERRing
from rslib.methods.hal import HAL
from rslib.methods.mer import MER
from rslib.registry import Registry

METHODS = Registry(
    "method",
    {
        "er": Method,
        "joint": Joint,
        "hal": HAL,
        "mer": MER,
        "der": DER,
        "derpp": DERpp,
        "agem": AGEM,
        "er-ring": ERRing,
    },
)
register = METHODS.register

__all__ = ["METHODS", "Batch", "Method", "register"]
