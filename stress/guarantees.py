"""Simulated worlds: how often the guarantee fails over many calibrations, which must be at most delta."""

from collections.abc import Iterator

from guarantee import POPULATIONS, simulate
from measurement import Row
from stress.plan import Plan, Result

IMAGES = (500, 5000)
RISK, DELTA = 0.05, 0.05
STRICT = ("risk 0.1 u", 2000, RISK, 0.001)
"""One more world, at the default failure probability."""
WORLDS = [*((name, images, RISK, DELTA) for name in POPULATIONS for images in IMAGES), STRICT]


def calibrate_worlds(plan: Plan) -> Iterator[Result]:
    """Calibrate in every world, `count` times in all, and compare the failures with what chance allows."""
    worlds = [world for world in WORLDS if plan.includes(world[0])]
    for name, images, risk, delta in worlds:
        if plan.seconds_left < 0:
            return
        found = simulate(name, images, risk, delta, -(-plan.count // len(worlds)), plan.seed)
        broken, allowed, draws = found["broken"], found["most_allowed_by_chance"], found["draws"]
        row: Row = {"test": "calibrations", "case": name, "images": images, "delta": delta, "calibrations": draws}
        row |= {"broken": broken, "broken_share": found["broken_share"], "allowed_by_chance": allowed}
        failed = isinstance(broken, int) and isinstance(allowed, int) and broken > allowed
        failures = [f"{name}: {broken} of {draws} guarantees failed, at most {allowed} expected"] if failed else []
        yield Result({**row, "seed": plan.seed}, failures)
