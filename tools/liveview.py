"""Draw docs/live-view.svg: the live view of the CartPole demo at the end of a real run.

    python tools/liveview.py [--seconds S] [--target RETURN] [--out FILE]

Like the demo, it needs echo-core[tcp], gymnasium and rich. `./dev liveview` installs them first.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TITLE = "./dev demo"
# numpy's linear algebra gets one thread per process, as in the demo. numpy reads this when it is imported, also in the worker processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path.insert(0, str(ROOT))


def picture(seconds: float, target: float) -> str:
    """Run the demo and return its last frame as SVG.

    Raises:
        SystemExit: the demo could not run.
    """
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME

    from examples.cartpole.job import run
    from examples.cartpole.live import LiveView
    from examples.cartpole.monitor import Monitor, Snapshot
    from examples.cartpole.options import Options

    console = Console(record=True, width=110, file=io.StringIO(), force_terminal=True, color_system="truecolor", legacy_windows=False)

    class Frame:
        """A view that draws only the last snapshot, into a recording."""

        def __init__(self, options: Options, address: str) -> None:
            self.view = LiveView(options, address, console)

        def draw(self, snapshot: Snapshot, monitor: Monitor, last: bool = False) -> None:
            if last:
                console.print(self.view.render(snapshot, monitor))

        def __enter__(self) -> Frame:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    outcome = run(Options(seconds=seconds, target=target, plot=None), view=Frame)
    if outcome.exit_code not in (0, 1):
        raise SystemExit(outcome.exit_code)
    svg = console.export_svg(title=TITLE, theme=SVG_EXPORT_THEME, unique_id="live")
    # The picture loads nothing from other places: `textLength` stretches the viewer's own monospace font to the columns.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
    return svg.replace("font-family: Fira Code, monospace", "font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="the longest that the run may take (default: %(default)g)")
    parser.add_argument("--target", type=float, default=450.0, help="mean return that has to hold for 10 s; 0: no target (default: %(default)g)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "live-view.svg", help="default: docs/live-view.svg")
    arguments = parser.parse_args()
    svg = picture(arguments.seconds, arguments.target)
    arguments.out.write_text("\n".join(line.rstrip() for line in svg.split("\n")).rstrip() + "\n")
    print(arguments.out)


if __name__ == "__main__":  # worker processes import this module again and must not run it
    main()
