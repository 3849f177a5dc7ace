"""What policies ask about an equation besides its size: random bits, collectives, batched products, its mesh.

Bodies are looked into: a loop that draws random bits draws them wherever in it. Read after `program`.
"""

from typing import Any

import jax.extend.core as jex

from jaxckpt.ir import Trait, trait_of


class Traits:
    """Finds traits, and remembers those of bodies; not for longer than the equations live."""

    def __init__(self) -> None:
        self._bodies: dict[int, frozenset[Trait]] = {}

    def of(self, eqn: Any) -> frozenset[Trait]:
        """The traits of one equation, its bodies included."""
        own = trait_of(eqn.primitive.name)
        found = frozenset() if own is None else frozenset({own})
        if eqn.primitive.name == "dot_general" and eqn.params["dimension_numbers"][1][0]:
            found |= {Trait.BATCHED}
        for jaxpr in jex.jaxprs_in_params(eqn.params):
            found |= self._of_body(jaxpr)
        return found

    def _of_body(self, jaxpr: Any) -> frozenset[Trait]:
        if id(jaxpr) not in self._bodies:
            self._bodies[id(jaxpr)] = frozenset().union(*map(self.of, jaxpr.eqns))
        return self._bodies[id(jaxpr)]


def placement_of(eqn: Any) -> str:
    """The mesh that an equation is told to run over, as text; "" where it says nothing."""
    said = eqn.params.get("mesh", getattr(eqn.params.get("sharding"), "mesh", None))
    meshes = [said, *(getattr(getattr(v.aval, "sharding", None), "mesh", None) for v in eqn.outvars)]
    for mesh in meshes:
        if getattr(mesh, "shape", None):
            return " ".join(f"{axis}={size}" for axis, size in dict(mesh.shape).items())
    return ""
