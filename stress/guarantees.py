"""Simulated worlds: the guarantee may fail in at most a fraction delta of many calibrations."""

from collections.abc import Iterator

from guarantee import POPULATIONS, UNKNOWN_WORLDS, UnknownWorld, simulate, simulate_unknown
from measurement import Row
from stress.plan import Plan, Result

IMAGES = (500, 5000)
RISK, DELTA = 0.05, 0.05
STRICT = ("risk 0.1 u", 2000, RISK, 0.001)
"""One more world, at the default failure probability."""
WORLDS = [*((name, images, RISK, DELTA) for name in POPULATIONS for images in IMAGES), STRICT]


def calibrate_worlds(plan: Plan) -> Iterator[Result]:
    """Calibrate in every world, `count` times in total, and compare the failures with the expected maximum."""
    worlds = [world for world in WORLDS if plan.includes(world[0])]
    with_unknown = [name for name in UNKNOWN_WORLDS if plan.includes(name)]
    draws = -(-plan.count // (len(worlds) + len(with_unknown) or 1))
    for name, images, risk, delta in worlds:
        if plan.seconds_left < 0:
            return
        found = simulate(name, images, risk, delta, draws, plan.seed)
        yield _judge(found, {"broken": found["most_allowed_by_chance"]}, plan.seed)
    for name in with_unknown:
        if plan.seconds_left < 0:
            return
        found = simulate_unknown(UnknownWorld.make(name), draws, plan.seed)
        yield _judge(
            found, {kind: found[f"{kind}_allowed_by_chance"] for kind in ("broken", "bound_broken")}, plan.seed
        )


def _judge(found: Row, allowed: Row, seed: int) -> Result:
    """Return the counts, and a failure for each kind of guarantee that failed more often than expected."""
    row: Row = {"test": "calibrations", "case": found["world"], "images": found["images"], "delta": found["delta"]}
    row["calibrations"] = found["draws"]
    failures = []
    for kind, most in allowed.items():
        count = found[kind]
        row |= {kind: count, f"{kind}_share": found[f"{kind}_share"]}
        row[f"{kind.removesuffix('broken')}allowed_by_chance"] = most
        if isinstance(count, int) and isinstance(most, int) and count > most:
            failures.append(f"{found['world']}: {count} of {found['draws']} {kind}, at most {most} expected")
    return Result({**row, "seed": seed}, failures)
