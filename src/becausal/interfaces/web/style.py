"""The look of the page: system type, the colours of the report, light or dark as the reader's machine prefers."""

FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")

#: What gradio's own parts take, by the names of its theme; each has its value in the light, then in the dark.
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

STYLE = """
.gradio-container {
  --bc-card: #ffffff; --bc-ink: #1d2228; --bc-soft: #5b6470; --bc-line: #e3e0da; --bc-accent: #7a3e9d;
  --bc-good: #1c6b43; --bc-good-bg: #e4f3ea; --bc-bad: #9c2b1f; --bc-bad-bg: #fbe7e3; --bc-flat-bg: #f1efeb;
  --bc-warn: #6b4a00; --bc-warn-bg: #fff3d1; --bc-warn-line: #e0b23c;
  max-width: 1320px !important; margin: 0 auto !important;
  padding: clamp(0.9rem, 2.5vw, 2rem) clamp(0.8rem, 2.5vw, 2rem) 3rem !important;
}
.dark .gradio-container, .gradio-container.dark {
  --bc-card: #1b1f25; --bc-ink: #e9e7e3; --bc-soft: #a4adb8; --bc-line: #2e343c; --bc-accent: #cf9ff0;
  --bc-good: #86d8a9; --bc-good-bg: #17342a; --bc-bad: #f2a196; --bc-bad-bg: #3b1f1c; --bc-flat-bg: #272c33;
  --bc-warn: #f3d58a; --bc-warn-bg: #332a13; --bc-warn-line: #8d701f; --color-accent: #cf9ff0;
}
.gradio-container :is(main, .main) { padding: 0 !important; }
.gradio-container .html-container { padding: 0; }
.gradio-container :where(.bc-head, .bc-picture, .bc-stage, .bc-card) :is(h1, h2, h3, p, ul, ol, li, dl, dt, dd, figure) {
  margin: 0; padding: 0; color: inherit; list-style: none;
}
.bc-head { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0.2rem 1rem; color: var(--bc-ink); }
.gradio-container .bc-head h1 { font-size: 1.7rem; font-weight: 680; letter-spacing: -0.02em; }
.gradio-container .bc-head p { font-size: 1.02rem; color: var(--bc-soft); max-width: 46rem; }
.bc-picture, .bc-stage, .bc-card { font-size: 1rem; line-height: 1.5; color: var(--bc-ink); }
.bc-card { margin-top: 1.6rem; padding-top: 1.4rem; border-top: 1px solid var(--bc-line); }
.gradio-container .bc-card h3 { font-size: 1.12rem; font-weight: 650; margin-bottom: 0.2rem; }
.gradio-container .bc-card > p { color: var(--bc-soft); margin-bottom: 0.9rem; max-width: 44rem; }
.bc-small { font-size: 0.87rem; color: var(--bc-soft); }
.gradio-container .bc-stage .bc-small, .gradio-container .bc-picture .bc-small { color: var(--bc-soft); margin-top: 0.6rem; }

.bc-button {
  display: inline-block; cursor: pointer; padding: 0.42rem 0.95rem; border-radius: 8px; font-weight: 600;
  background: var(--bc-card); color: var(--bc-ink) !important; border: 1px solid var(--bc-soft); text-decoration: none;
}
.bc-button:hover { border-color: var(--bc-accent); color: var(--bc-accent) !important; }
.bc-pixels:focus-visible { outline: none; }
.bc-pixels:focus-visible::after {
  content: ""; position: absolute; inset: 0; border: 3px solid var(--bc-accent); border-radius: 11px 11px 0 0;
  pointer-events: none;
}
.bc-button:focus-within, .bc-button:focus-visible, .bc-examples button:focus-visible,
.bc-reveal input:focus-visible { outline: 3px solid var(--bc-accent); outline-offset: 2px; }
.bc-button input { position: absolute; opacity: 0; width: 1px; height: 1px; }

.bc-drop {
  border: 1px solid var(--bc-line); border-radius: 12px; overflow: hidden; background: var(--bc-card); position: relative;
}
.bc-over .bc-drop { outline: 3px dashed var(--bc-accent); outline-offset: -3px; }
.bc-drop { transition: opacity 0.2s; }
#bc-picture[aria-busy="true"] .bc-drop { opacity: 0.55; transition-delay: 0.4s; }
.bc-drop img {
  display: block; width: 100%; max-height: clamp(180px, 27vh, 310px); object-fit: contain;
  background: var(--bc-flat-bg); margin: 0 !important;
}
.bc-empty { height: 220px; background: var(--bc-flat-bg); }
.gradio-container .bc-picture .bc-name {
  font-size: 0.87rem; color: var(--bc-soft); padding: 0.45rem 0.8rem; overflow-wrap: anywhere;
}
.bc-choose { display: flex; flex-wrap: wrap; gap: 0.3rem 0.8rem; align-items: center; margin-top: 0.8rem; }
.bc-choose span, .bc-get span { font-size: 0.87rem; color: var(--bc-soft); }
.bc-examples { display: grid; grid-template-columns: repeat(8, 1fr); gap: 0.4rem; margin-top: 0.35rem; }
.bc-examples button { padding: 0; border: 2px solid transparent; border-radius: 9px; overflow: hidden; cursor: pointer; }
.bc-examples button:hover, .bc-examples button[aria-pressed="true"] { border-color: var(--bc-accent); }
.bc-examples img { display: block; width: 100%; margin: 0 !important; }
.gradio-container p.bc-error {
  background: var(--bc-bad-bg); color: var(--bc-bad); border-radius: 8px; padding: 0.6rem 0.9rem; margin-top: 0.7rem;
  overflow-wrap: anywhere;
}
.gradio-container p.bc-error[hidden] { display: none; }
.gradio-container p.bc-warning {
  background: var(--bc-warn-bg); color: var(--bc-warn); border-left: 4px solid var(--bc-warn-line); border-radius: 6px;
  padding: 0.6rem 0.9rem; margin-bottom: 1rem;
}
.gradio-container .bc-stage > h2 {
  font-size: clamp(1.25rem, 2.3vw, 1.65rem); line-height: 1.28; font-weight: 620; letter-spacing: -0.012em;
  margin-bottom: 0.9rem; text-wrap: balance; overflow-wrap: anywhere;
}
.gradio-container .bc-stage h2 b { font-weight: 720; }
.gradio-container .bc-stage h2 em { font-style: normal; color: var(--bc-accent); }
.gradio-container .bc-welcome > ol { display: grid; gap: 1rem; counter-reset: step; margin-top: 1.2rem; }
.gradio-container .bc-welcome li { counter-increment: step; display: grid;
  grid-template-columns: 2.6rem 1fr; column-gap: 0.9rem; }
.bc-welcome li::before {
  content: counter(step); grid-row: span 2; width: 2.4rem; height: 2.4rem; border-radius: 99px; display: grid;
  place-items: center; font-weight: 700; color: var(--bc-accent); border: 2px solid var(--bc-accent);
}
.bc-welcome span { color: var(--bc-soft); }

.bc-bar { height: 6px; border-radius: 99px; background: var(--bc-line); overflow: hidden; margin-bottom: 1rem; }
.bc-bar i { display: block; height: 100%; background: var(--bc-accent); border-radius: 99px; transition: width 0.3s; }
.bc-wave i { width: 30%; animation: bc-wave 1.4s ease-in-out infinite; }
@keyframes bc-wave { from { transform: translateX(-110%); } to { transform: translateX(360%); } }
@media (prefers-reduced-motion: reduce) { .bc-wave i { animation: none; width: 100%; opacity: 0.5; } }

.bc-pictures, .bc-pair, .bc-methods { display: grid; gap: 1rem; grid-template-columns: 1fr 1fr; }
.bc-pair { max-width: 34rem; }
.bc-methods .bc-pair { gap: 0.6rem; }
.bc-several { display: grid; gap: 0.9rem; grid-template-columns: repeat(auto-fill, minmax(min(46%, 11rem), 1fr)); }
.gradio-container :is(.bc-stage, .bc-card) figure {
  background: var(--bc-card); border: 1px solid var(--bc-line); border-radius: 12px; overflow: hidden;
}
.gradio-container :is(.bc-stage, .bc-card) figure img {
  display: block; width: 100%; height: auto; margin: 0; border-radius: 0; image-rendering: pixelated;
}
.gradio-container :is(.bc-stage, .bc-card) figcaption {
  padding: 0.6rem 0.85rem 0.7rem; font-size: 0.88rem; line-height: 1.42; color: var(--bc-soft); text-align: left; margin: 0;
}
figcaption > b { display: block; color: var(--bc-ink); font-weight: 620; }
figcaption em { font-style: normal; }
.gradio-container .bc-methods h3 { font-size: 1.1rem; font-weight: 650; margin-bottom: 0.5rem; }
.bc-pixels { position: relative; cursor: crosshair; display: block; touch-action: manipulation; }
.bc-cursor {
  display: none; position: absolute; width: 22px; height: 22px; margin: -11px 0 0 -11px; border-radius: 99px;
  border: 2px solid #fff; box-shadow: 0 0 0 2px #14171b, inset 0 0 0 1px #14171b; pointer-events: none;
}
.bc-chosen .bc-cursor, .bc-mark .bc-cursor { display: block; }
.bc-mark { position: relative; }
figcaption strong { color: var(--bc-ink); font-weight: 620; }
.bc-scale { display: flex; align-items: center; gap: 0.5rem; margin-top: 0.4rem; font-size: 0.8rem; }
.bc-scale span { flex: 1; height: 0.5rem; border-radius: 99px; }
.bc-scale i { font-style: normal; }

.gradio-container dl.bc-figures { display: flex; flex-wrap: wrap; gap: 0.4rem 2rem; margin: 1.1rem 0 0; }
.gradio-container .bc-figures dt { font-size: 0.82rem; color: var(--bc-soft); }
.gradio-container .bc-figures dd { font-size: 1.3rem; font-weight: 640; font-variant-numeric: tabular-nums; }
.gradio-container ul.bc-checks { display: grid; gap: 0.7rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 13rem), 1fr)); margin: 1.1rem 0 0; }
.gradio-container ul.bc-checks li { padding: 0.55rem 0.8rem; border-radius: 9px;
  background: var(--bc-flat-bg); font-size: 0.87rem; line-height: 1.4; }
.bc-checks b { display: block; font-weight: 650; }
.bc-checks i { font-style: normal; }
.gradio-container .bc-checks .bc-yes { background: var(--bc-good-bg); }
.gradio-container .bc-checks .bc-no { background: var(--bc-bad-bg); }
.bc-checks .bc-yes b, em.bc-yes { color: var(--bc-good); }
.bc-checks .bc-no b, em.bc-no { color: var(--bc-bad); }
.bc-checks span { color: var(--bc-soft); }
.gradio-container ul.bc-notes { margin: 0.8rem 0 0; font-size: 0.87rem; color: var(--bc-soft); }
.gradio-container p.bc-get { margin: 1.2rem 0 0; display: flex; flex-wrap: wrap; gap: 0.3rem 0.8rem; align-items: center; }

.bc-reveal { display: grid; gap: 1.2rem; grid-template-columns: minmax(0, 17rem) minmax(0, 1fr); align-items: center; }
.bc-reveal canvas {
  width: 100%; height: auto; border-radius: 12px; image-rendering: pixelated; border: 1px solid var(--bc-line); }
.gradio-container .bc-reveal .bc-answer { font-size: 1.08rem; min-height: 3.2em; color: var(--bc-ink); }
.bc-answer em { font-style: normal; font-weight: 680; }
.bc-reveal svg { display: block; width: 100%; height: 5.2rem; overflow: visible; border-bottom: 1px solid var(--bc-line); }
.bc-reveal polyline { fill: none; stroke: var(--bc-accent); stroke-width: 2.5px; vector-effect: non-scaling-stroke; }
.bc-reveal line { stroke: var(--bc-soft); stroke-width: 1.5px; vector-effect: non-scaling-stroke; stroke-dasharray: 4 3; }
.bc-reveal input { width: calc(100% + 16px); margin: 0.5rem -8px 0; accent-color: var(--bc-accent); cursor: pointer; }
.gradio-container .bc-reveal .bc-ends {
  display: flex; justify-content: space-between; font-size: 0.82rem; color: var(--bc-soft); }
.gradio-container img.bc-data { display: none; }

.bc-table { overflow-x: auto; margin-top: 1.2rem; width: 0; min-width: 100%; }
.gradio-container .bc-table table { border-collapse: collapse; width: 100%; font-size: 0.92rem; }
.gradio-container .bc-table :is(th, td) {
  text-align: left; padding: 0.45rem 1rem 0.45rem 0; border: 0; border-bottom: 1px solid var(--bc-line);
  font-variant-numeric: tabular-nums; color: var(--bc-ink); background: none;
}
.gradio-container .bc-table th { font-weight: 400; color: var(--bc-soft); }
.gradio-container .bc-table td:first-child { font-weight: 650; }
.gradio-container button.secondary { border: 1px solid var(--button-secondary-border-color); }
.gradio-container button.primary { border: 1px solid var(--button-primary-border-color); }
.gradio-container button[aria-busy="true"] { opacity: 0.6; cursor: progress; transition: opacity 0.2s 0.4s; }
.gradio-container button[data-pressed] { opacity: 1; animation: bc-beat 1.2s ease-in-out infinite alternate; }
@keyframes bc-beat { to { opacity: 0.75; } }
@media (prefers-reduced-motion: reduce) { .gradio-container button[data-pressed] { animation: none; } }
.gradio-container p.bc-hint { font-size: 0.87rem; color: var(--bc-soft); margin: 0; }
#bc-hint:has(p:empty) { height: 0; min-height: 0; margin-top: calc(-1 * var(--layout-gap)); }
.gradio-container button:is(.primary, .secondary):focus-visible {
  outline: 3px solid var(--bc-accent); outline-offset: 2px; }
#bc-witness p[role] { scroll-margin-bottom: 6rem; }
#bc-compare { align-self: end; }
footer { display: none !important; }
@media (max-width: 700px) {
  .bc-methods, .bc-reveal { grid-template-columns: 1fr; }
  .bc-reveal canvas { max-width: 20rem; }
  .bc-examples { grid-template-columns: repeat(4, 1fr); }
  .gradio-container dl.bc-figures { gap: 0.5rem 1.4rem; }
}
@media (max-width: 520px) { .bc-pictures { grid-template-columns: 1fr; } }
"""
