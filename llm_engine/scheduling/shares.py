"""Who has had how many tokens: the tenant with the largest deficit goes next.

A tenant's deficit is what the least served of the waiting tenants' clock says it could have had,
less what it got. Weights are 1 each. While two tenants have requests in line, what they are given
differs by at most one request (the bound of fair queueing by virtual counters: Sheng et al. 2024,
"Fairness in serving large language models", OSDI, theorem 4.3).
"""

import heapq


class TenantShares:
    """Tokens given to each tenant, counted so that idle time earns no credit.

    Invariant: an idle tenant is remembered only while it is ahead of the clock.
    """

    def __init__(self) -> None:
        """Start with no tenant."""
        self._served: dict[str, int] = {}
        self._num_active: dict[str, int] = {}
        self._idle: list[tuple[int, str]] = []
        self._clock = 0

    @property
    def num_tenants(self) -> int:
        """Tenants remembered."""
        return len(self._served)

    def enter(self, tenant: str) -> None:
        """One more request of a tenant is waiting or running."""
        num_active = self._num_active.get(tenant, 0)
        if not num_active:
            self._served[tenant] = max(self._served.get(tenant, 0), self._clock)
        self._num_active[tenant] = num_active + 1

    def leave(self, tenant: str) -> None:
        """One request less."""
        self._num_active[tenant] -= 1
        if not self._num_active[tenant]:
            del self._num_active[tenant]
            heapq.heappush(self._idle, (self._served[tenant], tenant))
            self._sweep()

    def served(self, tenant: str) -> int:
        """Tokens a tenant was given, on the common clock."""
        return self._served[tenant]

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Tokens are computed for a tenant."""
        self._served[tenant] += num_tokens

    def advance(self, tenant: str) -> None:
        """A tenant was chosen as the least served: the clock moves up to it."""
        self._clock = max(self._clock, self._served[tenant])
        self._sweep()

    def _sweep(self) -> None:
        while self._idle and self._idle[0][0] <= self._clock:
            _, tenant = heapq.heappop(self._idle)
            if tenant not in self._num_active and self._served.get(tenant, 0) <= self._clock:
                self._served.pop(tenant, None)
