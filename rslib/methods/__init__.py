"""The replay methods by name: one short file each."""

from rslib.methods.agem import AGEM
from rslib.methods.der import DER, DERpp
from rslib.methods.er import Batch, Joint, Method
from rslib.methods.er_ring import ERRing
from rslib.methods.hal import HAL
from rslib.methods.mer import MER

METHODS: dict[str, type[Method]] = {
    "er": Method,
    "joint": Joint,
    "hal": HAL,
    "mer": MER,
    "der": DER,
    "derpp": DERpp,
    "agem": AGEM,
    "er-ring": ERRing,
}

__all__ = ["METHODS", "Batch", "Method"]
