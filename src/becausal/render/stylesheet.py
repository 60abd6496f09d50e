"""The look of the report: one column, system type, light or dark as the reader's machine prefers."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fbfaf8; --card: #ffffff; --ink: #1d2228; --soft: #5b6470; --line: #e3e0da;
  --accent: #7a3e9d; --good: #1c6b43; --good-bg: #e4f3ea; --bad: #9c2b1f; --bad-bg: #fbe7e3;
  --flat-bg: #eeece8; --warn: #6b4a00; --warn-bg: #fff3d1; --warn-line: #e0b23c; --code: #f3f1ed;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --card: #1b1f25; --ink: #e9e7e3; --soft: #a4adb8; --line: #2e343c;
    --accent: #cf9ff0; --good: #86d8a9; --good-bg: #17342a; --bad: #f2a196; --bad-bg: #3b1f1c;
    --flat-bg: #272c33; --warn: #f3d58a; --warn-bg: #332a13; --warn-line: #8d701f; --code: #21262d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 17px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  -webkit-text-size-adjust: 100%;
}
main { max-width: 60rem; margin: 0 auto; padding: clamp(1.5rem, 5vw, 4rem) clamp(1rem, 4vw, 2.5rem) 5rem; }
h1 {
  font-size: clamp(1.6rem, 4.6vw, 2.5rem); line-height: 1.2; font-weight: 650; letter-spacing: -0.015em;
  margin: 0 0 0.6rem; text-wrap: balance; overflow-wrap: anywhere;
}
h1 em { font-style: normal; color: var(--accent); }
h2 { font-size: 1.15rem; font-weight: 650; margin: 3.2rem 0 0.9rem; }
p { margin: 0.5rem 0; max-width: 44rem; }
.soft { color: var(--soft); }
.lead { font-size: 1.1rem; color: var(--soft); margin: 0 0 1.6rem; overflow-wrap: anywhere; }
.file { font-size: 0.9rem; color: var(--soft); margin: 0 0 1.4rem; overflow-wrap: anywhere; }
.warning {
  background: var(--warn-bg); color: var(--warn); border-left: 4px solid var(--warn-line); border-radius: 6px;
  padding: 0.8rem 1.1rem; margin: 0 0 1.6rem; max-width: none;
}
.pictures { display: grid; gap: 1.1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 16rem), 1fr)); }
.pictures.wide { grid-template-columns: 1fr; }
.pictures.pair { max-width: 40rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 13rem), 1fr)); }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow: hidden; }
figure img { display: block; width: 100%; height: auto; }
figcaption { padding: 0.7rem 0.9rem 0.8rem; font-size: 0.87rem; line-height: 1.45; color: var(--soft); }
figcaption b { color: var(--ink); font-weight: 600; display: block; }
.scale { display: flex; align-items: center; gap: 0.5rem; margin-top: 0.5rem; font-size: 0.8rem; }
.scale span { flex: 1; height: 0.55rem; border-radius: 99px; }
.scale i { font-style: normal; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 0.65rem 1.2rem 0.65rem 0; border-top: 1px solid var(--line); }
tr:last-child > * { border-bottom: 1px solid var(--line); }
th { font-weight: 600; white-space: nowrap; }
.mark { display: inline-block; border-radius: 99px; padding: 0.02rem 0.7rem; font-size: 0.9rem; white-space: nowrap; }
.mark.yes { background: var(--good-bg); color: var(--good); }
.mark.no { background: var(--bad-bg); color: var(--bad); }
.mark.flat { background: var(--flat-bg); color: var(--ink); }
pre {
  background: var(--code); border: 1px solid var(--line); border-radius: 8px; padding: 0.8rem 1rem; margin: 0.6rem 0;
  font: 0.86rem/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere;
}
details { margin-top: 3.2rem; border: 1px solid var(--line); border-radius: 10px; background: var(--card); }
summary { cursor: pointer; padding: 0.9rem 1.1rem; font-weight: 600; }
summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 10px; }
details .inside { padding: 0 1.1rem 1.1rem; }
details table { font-size: 0.87rem; }
details th { font-weight: 400; color: var(--soft); }
details td { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
details h3 { font-size: 0.95rem; margin: 1.4rem 0 0.4rem; }
ul { padding-left: 1.2rem; max-width: 44rem; overflow-wrap: anywhere; }
footer { margin-top: 3rem; font-size: 0.87rem; color: var(--soft); }
@media (max-width: 34rem) {
  body { font-size: 16px; }
  .checks tr { display: grid; grid-template-columns: 1fr auto; gap: 0 1rem; padding: 0.6rem 0;
    border-top: 1px solid var(--line); }
  .checks tr:last-child { border-bottom: 1px solid var(--line); }
  .checks tr > * { border: 0 !important; padding: 0; }
  .checks td:last-child { grid-column: 1 / -1; }
  .checks thead { display: none; }
  .record tr { display: block; border-top: 1px solid var(--line); padding: 0.4rem 0; }
  .record tr > * { display: block; border: 0 !important; padding: 0; }
}
@media print {
  figure, tr { break-inside: avoid; }
}
"""
