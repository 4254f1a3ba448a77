"""fedenergy: federated simulation of private household energy.

Names are loaded when first used, so that `import fedenergy` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "Accuracy": "box.policies_public",
    "Agreement": "box.agreement",
    "AgreementFolder": "box.agreement_files",
    "AgreementTerms": "box.agreement",
    "AttributionWeighted": "box.policies_weighted",
    "Auction": "box.policies_paid",
    "BoundedSearch": "box.policies",
    "Budget": "box.negotiation",
    "Case": "box.policy",
    "ClosedForm": "box.policies_public",
    "Counter": "box.policy",
    "CounterOffer": "box.policies_public",
    "Explain": "explain.task",
    "FeatureWeighted": "box.policies_weighted",
    "Fixed": "box.policies",
    "Forecast": "forecast.task",
    "ForecastTrees": "forecast.trees",
    "Household": "households.household",
    "Incentive": "box.policies_paid",
    "NeedAccuracy": "box.negotiation",
    "Offer": "box.policy",
    "Policy": "box.policy",
    "Population": "households.population",
    "Procurement": "box.negotiation",
    "Query": "box.query",
    "Refuse": "box.policy",
    "Release": "privacy.trust",
    "Report": "report.report",
    "RiskAware": "box.policies_paid",
    "Strict": "box.policies",
    "TakeIt": "box.negotiation",
    "ZoneStrategy": "federation.strategy",
    "appliance_homes": "households.datasets",
    "compare": "api",
    "london_households": "households.datasets",
    "negotiate": "box.negotiation",
    "run": "api",
    "simulate_households": "households.simulate",
    "uci_windows": "households.datasets",
}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedenergy' has no attribute {name!r}")
    value = getattr(import_module(f"fedenergy.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
