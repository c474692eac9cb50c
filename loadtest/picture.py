"""Draws a report: throughput over time, and latency by percentile."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from holdmq.errors import StartupError, UsageError

FORMATS: Final = (".png", ".svg")

_INK: Final = "#1c1d1a"
_MUTED: Final = "#6f6e67"
_LINE: Final = "#e8e6df"
_ACCENT: Final = "#0f766e"


def check(path: Path) -> None:
    """Raise UsageError when `path` does not end in a format that can be drawn."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path} must end in {' or '.join(FORMATS)}")


def draw(report: dict[str, Any], path: Path) -> None:
    """Write the picture of `report` to `path` (.png or .svg); StartupError when it cannot be written."""
    check(path)
    what = "messages" if "messages" in report else "connections"
    data = report[what]
    with mpl.rc_context({"font.size": 10, "text.color": _INK, "svg.fonttype": "none"}):
        room = ConstrainedLayoutEngine(rect=(0.012, 0.02, 0.976, 0.86), wspace=0.06)
        figure = Figure(figsize=(11, 4.6), dpi=130, facecolor="white", layout=room)
        over_time, by_percentile = figure.subplots(1, 2)
        _throughput(over_time, data, "messages" if what == "messages" else "connections")
        _percentiles(by_percentile, data, "publish → PUBACK" if what == "messages" else "connect → CONNACK")
        p = report["parameters"]
        detail = f"{p['host']}:{p['port']} · {p['devices']:,} devices · MQTT {p['mqtt']}"
        if what == "messages":
            pace = f"{p['rate']:,.0f}/s asked" if p["rate"] else f"window {p['window']}"
            detail += f" · QoS {p['qos']} · {p['payload_bytes']} bytes · {pace}"
        title = f"{data['rate']:,.0f} {what} per second"
        figure.text(0.02, 0.955, title, va="top", fontsize=17, fontweight="light")
        figure.text(0.98, 0.94, detail, ha="right", va="top", color=_MUTED, fontsize=9)
        try:
            figure.savefig(path)
        except OSError as error:
            raise StartupError(f"the picture cannot be written to {path}: {error.strerror}") from error


def _throughput(axes: Axes, data: dict[str, Any], unit: str) -> None:
    counts = data["per_second"]
    # A second that the end cut off would look like a collapse.
    whole = counts[: max(1, int(data["seconds"] + 0.05))]
    seconds = [s + 0.5 for s in range(len(whole))]
    axes.plot(seconds, whole, color=_ACCENT, linewidth=1.8, marker="o" if len(whole) < 3 else "")
    axes.fill_between(seconds, whole, color=_ACCENT, alpha=0.1, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0, right=max(1, len(whole)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    _dress(axes, f"{unit} per second", "seconds")


def _percentiles(axes: Axes, data: dict[str, Any], what: str) -> None:
    curve = data["latency_curve_us"]
    if curve:
        # 1 / (1 − p): every nine gets the same room, as HDR histograms are read.
        axes.plot(
            [1 / max(1e-9, 1 - p / 100) for p, _ in curve], [us / 1000 for _, us in curve], color=_ACCENT
        )
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        ticks = [(1, "0"), (2, "50"), (10, "90"), (100, "99"), (1e3, "99.9"), (1e4, "99.99"), (1e5, "99.999")]
        right = 1 / max(1e-9, 1 - curve[-1][0] / 100)
        shown = [(at, text) for at, text in ticks if at <= right * 1.01]
        axes.set_xticks([at for at, _ in shown], [text for _, text in shown])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,g}")
    else:
        axes.text(
            0.5, 0.5, "no acknowledgements, no latency", ha="center", color=_MUTED, transform=axes.transAxes
        )
    _dress(axes, f"{what}, ms", "percentile")


def _dress(axes: Axes, title: str, below: str) -> None:
    axes.set_title(title, loc="left", color=_MUTED, fontsize=10, pad=10)
    axes.set_xlabel(below, color=_MUTED)
    axes.grid(axis="y", color=_LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_MUTED, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_LINE)
