"""The planners by name."""

from __future__ import annotations

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Planner
from heterotask_core.planning.cpop import CPOP
from heterotask_core.planning.cpsat import CPSAT
from heterotask_core.planning.heft import HEFT
from heterotask_core.planning.heft_oct import HEFT_OCT
from heterotask_core.planning.lookahead import LOOKAHEAD
from heterotask_core.planning.peft import PEFT
from heterotask_core.planning.peft_area import PEFT_AREA
from heterotask_core.planning.peft_data import PEFT_DATA
from heterotask_core.planning.peft_link import PEFT_LINK
from heterotask_core.planning.policies.planner import POLICY_PLANNERS
from heterotask_core.planning.portfolio import PORTFOLIO
from heterotask_core.planning.restricted import RESTRICTED

_ALL: tuple[Planner, ...] = (
    PORTFOLIO,
    PEFT,
    HEFT,
    CPOP,
    LOOKAHEAD,
    PEFT_LINK,
    PEFT_AREA,
    PEFT_DATA,
    HEFT_OCT,
    RESTRICTED,
    CPSAT,
    *POLICY_PLANNERS,
)
_PLANNERS: dict[str, Planner] = {p.name: p for p in _ALL}
PLANNERS = tuple(_PLANNERS)
"""Names of all planners."""


def planner(name: str) -> Planner:
    """Return the planner called ``name``. Raises :class:`InfeasiblePlanError` listing the names."""
    if name not in _PLANNERS:
        raise InfeasiblePlanError(f"there is no planner {name!r}; choose one of {', '.join(PLANNERS)}")
    return _PLANNERS[name]
