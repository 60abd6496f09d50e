"""The components of the page and the events between them."""

from typing import Any

import gradio as gr

from becausal.interfaces.web.page import CHOICES, COMPARED_METHOD, Page
from becausal.interfaces.web.rendering import render
from becausal.interfaces.web.tasks import CELL_COUNTS, CONFIDENCE_SHARES, MAX_EXPLANATIONS, available_fills

Components = dict[str, Any]  # by their id without the prefix "bc-"


def build_blocks(page: Page) -> gr.Blocks:
    """The page as a gradio app."""
    limits = page.limits
    ui: Components = {}
    with gr.Blocks(analytics_enabled=False, title="becausal: why this label?") as blocks:
        gr.HTML(render("header"), js_on_load=None, apply_default_css=False)
        with gr.Row(equal_height=False):
            with gr.Column(scale=4, min_width=320):
                _add_controls(ui, list(page.models))
                with gr.Accordion("More options", open=False):
                    _add_options(ui, limits.max_calls)
            with gr.Column(scale=8, min_width=320, elem_classes="bc-right"), gr.Tabs():
                _add_results(ui)
        _connect(blocks, page, ui)
    blocks.max_threads = limits.workers + limits.waiting + 60  # concurrent events, waiting searches included
    blocks.state_session_capacity = limits.sessions
    blocks.queue(max_size=500, api_open=False, default_concurrency_limit=4)
    return blocks


def _add_html(ui: Components, name: str, value: str = "", *, set_up: str | None = None) -> None:
    """A component of our own HTML. set_up: the function of `static/page.js` that adds its behaviour."""
    script = f"becausal.{set_up}(element, trigger, watch)" if set_up else None
    ui[name] = gr.HTML(value, js_on_load=script, elem_id=f"bc-{name}", apply_default_css=False)


def _add_controls(ui: Components, models: list[str]) -> None:
    _add_html(ui, "image", set_up="setUpImage")
    ui["model"] = gr.Dropdown(models, value=models[0], label="Model", visible=len(models) > 1, elem_id="bc-model")
    ui["label"] = gr.Radio([], elem_id="bc-label", **CHOICES[False])
    with gr.Row():
        ui["go"] = gr.Button("Explain", variant="primary", min_width=120, elem_id="bc-go")
        ui["stop"] = gr.Button("Stop", interactive=False, min_width=120, elem_id="bc-stop")
    _add_html(ui, "hint", render("hint"), set_up="setUpButtons")
    ui["method"] = gr.Dropdown(
        ["causal"],
        value="causal",
        label="Method",
        info="causal searches for a minimal set of pixels; the other methods rank all pixels first.",
        elem_id="bc-method",
    )


def _add_options(ui: Components, max_calls: int) -> None:
    ui["share"] = gr.Radio(
        list(CONFIDENCE_SHARES.items()),
        value=0.9,
        label="What the explanation must keep",
        elem_id="bc-share",
    )
    ui["fill"] = gr.Dropdown(list(available_fills()), value="grey", label="Fill for masked pixels", elem_id="bc-fill")
    ui["grain"] = gr.Radio(
        list(CELL_COUNTS.items()),
        value=32,
        label="Level of detail",
        info="A finer explanation has fewer pixels but is harder to see.",
        elem_id="bc-grain",
    )
    ui["several"] = gr.Radio(
        list(range(1, MAX_EXPLANATIONS + 1)),
        value=1,
        label="Number of explanations",
        info="Disjoint sets (method causal only).",
        elem_id="bc-several",
    )
    ui["calls"] = gr.Slider(
        100,
        max_calls,
        value=min(2000, max_calls),
        step=50,
        label="Maximum model calls",
        elem_id="bc-calls",
    )


def _add_results(ui: Components) -> None:
    with gr.Tab("Explanation"):
        _add_html(ui, "stage", render("welcome"), set_up="setUpExplanation")
        _add_html(ui, "witness", set_up="setUpWitness")
        _add_html(ui, "reveal", set_up="setUpReveal")
        _add_html(ui, "others")
    with gr.Tab("Comparison"):
        with gr.Row(equal_height=False):
            ui["other"] = gr.Dropdown(
                [COMPARED_METHOD],
                value=COMPARED_METHOD,
                label="Compare with",
                elem_id="bc-other",
            )
            ui["compare"] = gr.Button("Compare", variant="primary", scale=0, min_width=180, elem_id="bc-compare")
        _add_html(ui, "compared", render("compare_intro"))


def _connect(blocks: gr.Blocks, page: Page, ui: Components) -> None:
    def pick(*names: str) -> list[Any]:
        return [ui[name] for name in names]

    private: dict[str, Any] = {"api_visibility": "private"}
    quiet = {"show_progress": "hidden", **private}
    concurrent = {"trigger_mode": "multiple", **quiet}  # no event is dropped while another one is handled
    chosen = pick("image", "model", "label", "method", "other", "stage", "witness", "reveal", "others", "compared")
    buttons = pick("go", "compare", "stop")
    announce_model = "(...values) => { becausal.announce('bc-loading'); return values; }"
    for choice in (
        blocks.load(page.load, None, chosen, **quiet),
        ui["image"].select(page.choose_example, [ui["model"]], chosen, **concurrent),
        ui["image"].upload(page.choose_upload, [ui["model"]], chosen, **concurrent),
        ui["model"].input(page.choose_model, [ui["model"]], chosen, js=announce_model, **concurrent),
    ):
        for ended in (choice.success, choice.failure):
            ended(None, None, None, js="() => becausal.announce('bc-loaded')", trigger_mode="multiple", **private)
    ui["go"].click(None, None, None, js="() => becausal.showExplanation()", **private)
    ui["go"].click(
        page.explain,
        pick("method", "fill", "label", "share", "grain", "several", "calls"),
        [*pick("stage", "witness", "reveal", "others"), *buttons],
        concurrency_limit=None,
        **quiet,
    )
    ui["compare"].click(
        page.compare,
        pick("method", "other", "fill", "label", "share", "calls"),
        [ui["compared"], *buttons],
        concurrency_limit=None,
        **quiet,
    )
    ui["stop"].click(page.stop, None, None, **quiet)
    ui["stage"].select(page.show_witness, None, ui["witness"], **concurrent)
    blocks.unload(page.close)
