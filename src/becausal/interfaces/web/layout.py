"""The page's parts, where they stand, and which of them does what."""

from typing import Any

import gradio as gr

from becausal.interfaces.web import parts, script
from becausal.interfaces.web.page import OTHER, Page
from becausal.interfaces.web.questions import MOST_SEVERAL, offer_fills

HEAD = (
    '<header class="bc-head"><h1>becausal</h1><p>Ask an image classifier why: the few pixels that are enough for its '
    "label.</p></header>"
)


def lay_out(page: Page) -> gr.Blocks:
    """The parts, where they stand, and what each does."""
    limits = page.limits
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    with gr.Blocks(analytics_enabled=False, title="becausal: why this label?") as blocks:
        gr.HTML(HEAD, apply_default_css=False)
        with gr.Row(equal_height=False):
            with gr.Column(scale=4, min_width=320):
                picture = gr.HTML(js_on_load=script.PICTURE, elem_id="bc-picture", apply_default_css=False)
                names = list(page.models)
                model = gr.Dropdown(names, value=names[0], label="Model", visible=len(names) > 1, elem_id="bc-model")
                label = gr.Radio(
                    [], label="The classifier says", info="Which of its labels is to be explained?", elem_id="bc-label"
                )
                with gr.Row():
                    go = gr.Button("Explain", variant="primary", min_width=120, elem_id="bc-go")
                    halt = gr.Button("Stop", interactive=False, min_width=120, elem_id="bc-stop")
                gr.HTML(parts.draw_hint(), js_on_load=script.PRESSES, elem_id="bc-hint", apply_default_css=False)
                method = gr.Dropdown(
                    ["causal"],
                    value="causal",
                    label="Method",
                    info="causal finds the smallest sets; the others rank pixels in their own ways.",
                    elem_id="bc-method",
                )
                with gr.Accordion("More choices", open=False):
                    share = gr.Radio(
                        [("only the label", 0.0), ("half its confidence", 0.5), ("nine tenths of it", 0.9)],
                        value=0.9,
                        label="What must stay",
                        elem_id="bc-share",
                    )
                    fill = gr.Dropdown(
                        list(offer_fills()), value="grey", label="What hidden pixels become", elem_id="bc-fill"
                    )
                    grain = gr.Radio(
                        [("fine", 56), ("medium", 32), ("coarse", 16)],
                        value=32,
                        label="Smallest parts",
                        info="A finer answer is smaller, and harder to look at.",
                        elem_id="bc-grain",
                    )
                    several = gr.Radio(
                        list(range(1, MOST_SEVERAL + 1)),
                        value=1,
                        label="How many explanations",
                        info="Separate ones, if there are so many (method causal).",
                        elem_id="bc-several",
                    )
                    calls = gr.Slider(
                        100,
                        limits.max_calls,
                        value=min(2000, limits.max_calls),
                        step=50,
                        label="Most calls of the classifier",
                        elem_id="bc-calls",
                    )
            with gr.Column(scale=8, min_width=320, elem_classes="bc-right"), gr.Tabs():
                with gr.Tab("Explanation"):
                    stage = gr.HTML(
                        parts.draw_welcome(), js_on_load=script.STAGE, elem_id="bc-stage", apply_default_css=False
                    )
                    witness = gr.HTML("", js_on_load=script.WITNESS, elem_id="bc-witness", apply_default_css=False)
                    reveal = gr.HTML("", js_on_load=script.REVEAL, elem_id="bc-reveal", apply_default_css=False)
                    others = gr.HTML("", elem_id="bc-others", js_on_load=None, apply_default_css=False)
                with gr.Tab("Comparison"):
                    with gr.Row(equal_height=False):
                        other = gr.Dropdown([OTHER], value=OTHER, label="Compare the chosen method with", elem_id="bc-other")
                        versus = gr.Button("Compare", variant="primary", scale=0, min_width=180, elem_id="bc-compare")
                    compared = gr.HTML(
                        parts.draw_invitation(), elem_id="bc-compared", js_on_load=None, apply_default_css=False
                    )

        chosen = [picture, model, label, method, other, stage, witness, reveal, others, compared]
        buttons = [go, versus, halt]
        every: dict[str, Any] = {"trigger_mode": "multiple", **quiet}  # none is left out while another is under way
        for choice in (
            blocks.load(page.open, None, chosen, **quiet),
            picture.select(page.take_example, [model], chosen, **every),
            picture.upload(page.take_upload, [model], chosen, **every),
            model.input(page.take_model, [model], chosen, js=script.COMING, **every),
        ):
            for ended in (choice.success, choice.failure):  # one of them always comes
                ended(None, None, None, js=script.THERE, api_visibility="private", trigger_mode="multiple")
        go.click(None, None, None, js=script.TO_THE_ANSWER, api_visibility="private")
        go.click(
            page.explain,
            [method, fill, label, share, grain, several, calls],
            [stage, witness, reveal, others, *buttons],
            concurrency_limit=None,
            **quiet,
        )
        versus.click(
            page.compare, [method, other, fill, label, share, calls], [compared, *buttons], concurrency_limit=None, **quiet
        )
        halt.click(page.stop, None, None, **quiet)
        stage.select(page.show_witness, None, witness, **every)
        blocks.unload(page.leave)
    blocks.max_threads = limits.workers + limits.waiting + 60  # events under way at once, searches in line included
    blocks.state_session_capacity = limits.sessions
    blocks.queue(max_size=500, api_open=False, default_concurrency_limit=4)
    return blocks
