"""The plots of a bench as PNG and SVG; each method has the same colour and line style in all plots."""

from io import BytesIO
from typing import TYPE_CHECKING

from becausal.lab.bench.plots import Line, Plot
from becausal.render.figures import INK, SOFT, new_figure, png_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours that are distinguishable with colour blindness (after Okabe and Ito), and line styles for further methods.
STYLES: dict[str, tuple[str, str]] = {
    "causal": ("#7a3e9d", "-"),
    "dc-causal": ("#0072b2", "-"),
    "sbfl": ("#009e73", "-"),
    "rise": ("#e69f00", "-"),
    "occlusion": ("#56b4e9", "-"),
    "lime": ("#d55e00", "-"),
    "shap": ("#cc79a7", "-"),
    "greedy": ("#0072b2", "-."),
    "phasewin": ("#d55e00", "-."),
    "hsic": ("#009e73", "-."),
    "sobol": ("#cc79a7", "-."),
    "ig": ("#0072b2", "--"),
    "gbp": ("#009e73", "--"),
    "deeplift": ("#e69f00", "--"),
    "grad-cam": ("#56b4e9", "--"),
    "lrp": ("#d55e00", "--"),
    "rap": ("#cc79a7", "--"),
    "extremal": ("#1d2228", "--"),
    "random": ("#9aa2ab", ":"),
    "centre": ("#68717c", ":"),
}
SPARE = (("#1d2228", "-"), ("#0072b2", "-."), ("#d55e00", "-."), ("#009e73", "-."), ("#cc79a7", "-."), ("#e69f00", "-."))


def draw_plot(plot: Plot) -> "Figure":
    """The plot as a figure with the legend on the right."""
    figure = new_figure(8.6, 4.3)
    axes = figure.add_subplot()
    taken: set[tuple[str, str]] = set()
    for number, line in enumerate(plot.lines):
        style = style_of(line.label, taken)
        taken.add(style)
        _draw(axes, plot, line, style, number)
    _format_axes(axes, plot)
    if plot.lines:
        places = _legend_order(plot)
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            [handles[i] for i in places], [labels[i] for i in places], loc="upper left", bbox_to_anchor=(1.01, 1.0),
            frameon=False, fontsize=8.5, labelcolor=INK, handlelength=2.6,
        )  # fmt: skip
    return figure


def style_of(label: str, taken: set[tuple[str, str]]) -> tuple[str, str]:
    """Colour and line style of a line: those of its method, or unused ones; lines for wrong labels are dashed."""
    method = label.split(",")[0].split(":")[0].strip()
    colour, dash = STYLES.get(method, SPARE[0])
    wanted = (colour, "--" if label.endswith(", wrong") else dash)
    return wanted if wanted not in taken else next((style for style in SPARE if style not in taken), wanted)


def figure_files(plot: Plot) -> dict[str, bytes]:
    """The plot as PNG and SVG, by file suffix; the same bytes for the same plot."""
    import matplotlib

    figure = draw_plot(plot)
    with matplotlib.rc_context({"svg.hashsalt": "becausal", "svg.fonttype": "path"}):
        buffer = BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return {"png": png_bytes(figure), "svg": buffer.getvalue()}


def _draw(axes: "Axes", plot: Plot, line: Line, style: tuple[str, str], number: int) -> None:
    colour, dash = style
    width = 2.4 if line.label == "causal" else 1.5
    front = 3.0 if line.label == "causal" else 2.0
    match plot.kind:
        case "step":
            axes.step(line.x, line.y, where="post", color=colour, ls=dash, lw=width, label=line.label, zorder=front)
        case "line":
            axes.plot(line.x, line.y, color=colour, ls=dash, lw=width, label=line.label, zorder=front)
            if line.low and len(plot.lines) <= 3:
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.13, lw=0)
        case "points":
            shift = (number - (len(plot.lines) - 1) / 2) * 0.6 / max(4, len(plot.lines))
            x = [value + shift for value in line.x]
            below = [max(0.0, y - low) for y, low in zip(line.y, line.low, strict=True)]
            above = [max(0.0, high - y) for y, high in zip(line.y, line.high, strict=True)]
            marker = "os^Dvp*h"[number % 8]
            axes.errorbar(
                x, line.y, yerr=[below, above], color=colour, ls="none", marker=marker, ms=5, lw=1.1, capsize=0,
                label=line.label, zorder=front,
            )  # fmt: skip


def _format_axes(axes: "Axes", plot: Plot) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_title(plot.title, loc="left", fontsize=11, color=INK, pad=10, parse_math=False)
    axes.set_xlabel(plot.x, fontsize=9, color=SOFT, parse_math=False)
    axes.set_ylabel(plot.y, fontsize=9, color=SOFT, parse_math=False)
    axes.tick_params(length=0, labelsize=8.5, labelcolor=SOFT)
    axes.grid(True, color="#e9e6e1", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c9c5be")
    if "x" in plot.shares:
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    if "y" in plot.shares:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    if plot.ticks:
        axes.set_xticks(range(len(plot.ticks)), plot.ticks, rotation=0 if len(plot.ticks) < 7 else 30)
    if plot.kind == "step":
        axes.set_ylim(-0.02, 1.02)
        xs = plot.lines[0].x if plot.lines else (0.0, 1.0)
        axes.set_xlim(xs[0], xs[-1])


def _legend_order(plot: Plot) -> list[int]:
    """The order of the legend: higher curves first, as in the plot."""
    heights = [sum(line.y) / max(1, len(line.y)) for line in plot.lines]
    if plot.kind == "points":
        return list(range(len(heights)))
    return sorted(range(len(heights)), key=lambda i: -heights[i])
