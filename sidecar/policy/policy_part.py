"""What all parts of the policy have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class PolicyPart(BaseModel):
    """A mapping of the policy file; a key that it does not know is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True)
