"""The public surface: sorted, complete, light."""

from __future__ import annotations

import subprocess
import sys

import fedenergy


def test_every_public_name_exists_and_is_documented():
    assert fedenergy.__all__ == sorted(fedenergy.__all__)
    for name in fedenergy.__all__:
        assert getattr(fedenergy, name).__doc__, name


def test_the_surface_is_this():
    assert fedenergy.__all__ == [
        "Accuracy", "Agreement", "AgreementFolder", "AgreementTerms", "AttributionWeighted", "Auction", "BoundedSearch",
        "Budget", "Case", "ClosedForm", "Counter", "CounterOffer", "Explain", "FeatureWeighted", "Fixed", "Forecast",
        "ForecastTrees", "Household",
        "Incentive",
        "NeedAccuracy", "Offer", "Policy", "Population", "Procurement", "Query", "Refuse", "Release", "Report",
        "RiskAware", "Strict", "TakeIt", "ZoneStrategy", "appliance_homes", "compare", "london_households", "negotiate",
        "run", "simulate_households", "uci_windows"]


def test_importing_loads_nothing_heavy():
    code = ("import sys, time; t = time.perf_counter(); import fedenergy; "
            "heavy = {'torch', 'ray', 'flwr', 'pandas', 'xgboost', 'shap', 'matplotlib', 'scipy'} & set(sys.modules); "
            "assert not heavy, heavy; fedenergy.Query(); assert 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(fedenergy, "NoSuchThing")
