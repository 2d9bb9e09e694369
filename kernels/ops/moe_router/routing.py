"""How a router chooses, as data."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.errors import ShapeError

SCORES = ("softmax", "sigmoid", "sqrtsoftplus", "hash")
RENORMALISE_EPS = 1e-20


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The rule of one layer's router.

    `score` "hash" takes the experts from a table and weighs them by sqrt(softplus). With
    `num_groups` above 1 only the `kept_groups` best groups may be chosen from; a group is worth
    the sum of its two best scores. `scale` multiplies the weights last.

    Raises:
        ShapeError: a value that no router has.
    """

    score: str
    k: int
    num_groups: int = 1
    kept_groups: int = 1
    is_renormalised: bool = True
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise ShapeError(f"score is {self.score!r}; it must be one of {', '.join(SCORES)}")
        if self.k < 1:
            raise ShapeError(f"k is {self.k}; a token needs at least one expert")
        if not 1 <= self.kept_groups <= self.num_groups:
            raise ShapeError(
                f"kept_groups is {self.kept_groups}; it must lie in 1 ... {self.num_groups}"
            )

    def check_experts(self, num_experts: int) -> None:
        """Refuse a number of experts that the groups do not divide or that cannot yield k.

        Raises:
            ShapeError: names both numbers.
        """
        if num_experts % self.num_groups:
            raise ShapeError(f"{num_experts} experts do not divide into {self.num_groups} groups")
        in_reach = num_experts // self.num_groups * self.kept_groups
        if self.k > in_reach:
            raise ShapeError(f"k is {self.k}, and only {in_reach} experts are in the kept groups")
