"""Ready-made feature maps for states that cannot be listed: vectorised, sparse, with the pairs that are simulated.

    Hats, Simplices         interpolation on a grid: multilinear, barycentric
    Tiles, Aggregation      pairs that are taken for alike, by cells or by a function of your own
    SoftAggregation         normalised kernels
    Actions                 the action alone
    Product, Blocks         products of maps; one map for each action (or for each of other blocks)
    Custom                  a function of your own
    Objects                 for states that are objects: how they become numbers

All of them map (states (n, k), actions (n,)) to convex combinations, a sparse array (n, d). What cannot be a state is
refused with an error that names it.
"""

from __future__ import annotations

from typing import Any

from bestpolicy.errors import InvalidInput
from bestpolicy.features.base import Custom, FeatureMap
from bestpolicy.features.classes import Actions, Aggregation, SoftAggregation, Tiles
from bestpolicy.features.combined import Blocks, Product
from bestpolicy.features.grids import Hats, Simplices
from bestpolicy.features.objects import Objects


def from_dict(known: Any) -> FeatureMap:
    """Return the map that `FeatureMap.to_dict` has described; nothing in it is executed."""
    try:
        kind = known["kind"]
        if kind == Hats.kind:
            return Hats(known["axes"])
        if kind == Simplices.kind:
            return Simplices(known["axes"])
        if kind == Tiles.kind:
            return Tiles(known["axes"])
        if kind == SoftAggregation.kind:
            return SoftAggregation(known["centres"], known["width"])
        if kind == Actions.kind:
            return Actions(known["actions"], known["state_dimension"])
        if kind == Product.kind:
            return Product(from_dict(known["first"]), from_dict(known["second"]))
        if kind == Blocks.kind:
            return Blocks([from_dict(each) for each in known["maps"]])
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"this is no description of a feature map ({error!r:.80}).") from None
    raise InvalidInput(f"unknown kind of feature map {kind!r:.60}.")


__all__ = [
    "Actions",
    "Aggregation",
    "Blocks",
    "Custom",
    "FeatureMap",
    "Hats",
    "Objects",
    "Product",
    "Simplices",
    "SoftAggregation",
    "Tiles",
    "from_dict",
]
