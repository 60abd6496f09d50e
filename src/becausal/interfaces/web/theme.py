"""Fonts and colours of gradio's own components; `static/page.css` styles everything else."""

from typing import Any

FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")

#: By the names of gradio's theme variables: the value in light mode, then in dark mode.
COLOURS = {
    "body_background_fill": ("#fbfaf8", "#14171b"),
    "body_text_color": ("#1d2228", "#e9e7e3"),
    "body_text_color_subdued": ("#5b6470", "#a4adb8"),
    "background_fill_primary": ("#ffffff", "#1b1f25"),
    "background_fill_secondary": ("#fbfaf8", "#14171b"),
    "block_background_fill": ("#ffffff", "#1b1f25"),
    "block_border_color": ("#e3e0da", "#2e343c"),
    "block_label_background_fill": ("#ffffff", "#1b1f25"),
    "block_label_text_color": ("#1d2228", "#e9e7e3"),
    "block_title_text_color": ("#1d2228", "#e9e7e3"),
    "block_info_text_color": ("#5b6470", "#a4adb8"),
    "border_color_primary": ("#e3e0da", "#2e343c"),
    "border_color_accent": ("#7a3e9d", "#cf9ff0"),
    "color_accent_soft": ("#f1e8f7", "#2f2438"),
    "input_background_fill": ("#ffffff", "#14171b"),
    "input_border_color": ("#c9c5bd", "#454d57"),
    "input_border_color_focus": ("#7a3e9d", "#cf9ff0"),
    "checkbox_background_color_selected": ("#7a3e9d", "#a877cc"),
    "checkbox_border_color_selected": ("#7a3e9d", "#a877cc"),
    "checkbox_label_background_fill": ("#ffffff", "#1b1f25"),
    "checkbox_label_background_fill_selected": ("#f1e8f7", "#2f2438"),
    "checkbox_label_text_color_selected": ("#1d2228", "#e9e7e3"),
    "slider_color": ("#7a3e9d", "#cf9ff0"),
    "button_primary_background_fill": ("#7a3e9d", "#8a4bb0"),
    "button_primary_background_fill_hover": ("#69328a", "#9a5cbf"),
    "button_primary_text_color": ("#ffffff", "#ffffff"),
    "button_primary_border_color": ("#7a3e9d", "#8a4bb0"),
    "button_secondary_background_fill": ("#ffffff", "#272c33"),
    "button_secondary_background_fill_hover": ("#f3f1ed", "#323942"),
    "button_secondary_text_color": ("#1d2228", "#e9e7e3"),
    "button_secondary_border_color": ("#c9c5bd", "#454d57"),
}


def make_theme(gr: Any) -> Any:
    """The gradio theme: system fonts, so that none is downloaded, and the colours of the report."""
    theme = gr.themes.Base(
        font=list(FONT), font_mono=list(MONO), radius_size=gr.themes.sizes.radius_md, text_size=gr.themes.sizes.text_md
    )
    return theme.set(
        color_accent=COLOURS["border_color_accent"][0],
        input_border_width="1px",
        **{name: light for name, (light, _) in COLOURS.items()},
        **{f"{name}_dark": dark for name, (_, dark) in COLOURS.items()},
    )
