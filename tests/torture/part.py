"""One part of the harness in one process of the interpreter under test; run.py starts it.

python part.py PART --world FOLDER --desk FOLDER --report FILE --cases BEGIN:END:STEP --seed 0 [--only NAME]
python part.py world --world FOLDER
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # children are forked: no pool of threads may exist before


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["world", "hostile", "damaged", "kills", "pairs"])
    parser.add_argument("--world", type=Path, required=True)
    parser.add_argument("--desk", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--cases", default="0:1:1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only")
    options = parser.parse_args()

    import elmokit

    home = Path(elmokit.__file__).resolve()
    assert home.parents[1].name == "site-packages", f"elmokit is in {home}: use an installed wheel, not a checkout"

    from world import World, make_world

    if options.part == "world":
        make_world(options.world)
        print(home.parent)
        return
    begin, end, step = map(int, options.cases.split(":"))
    run = __import__(options.part).run
    extra = {"only": options.only} if options.only is not None else {}
    report = run(World(options.world), options.desk, seed=options.seed, cases=range(begin, end), step=step, **extra)
    report.write(options.report)


if __name__ == "__main__":
    main()
