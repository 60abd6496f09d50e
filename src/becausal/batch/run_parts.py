"""Style and script of the pages about whole runs."""

MORE_STYLE = """
main { max-width: 80rem; }
.thumbs { display: grid; gap: 0.7rem; grid-template-columns: repeat(auto-fill, minmax(7.6rem, 1fr)); }
.thumbs.pairs { grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); }
.thumbs.small { grid-template-columns: repeat(auto-fill, minmax(6.6rem, 1fr)); gap: 0.45rem; }
.thumbs figure { border-radius: 7px; }
.thumbs figcaption { padding: 0.35rem 0.5rem 0.45rem; font-size: 0.76rem; line-height: 1.35; overflow-wrap: anywhere; }
.thumbs.small figcaption { font-size: 0.7rem; padding: 0.25rem 0.4rem 0.35rem; }
.thumbs figcaption b { font-size: 0.82rem; }
.thumbs.small figcaption b { font-size: 0.74rem; }
.thumbs figcaption span { opacity: 0.8; }
.thumbs.small figcaption span { display: none; }
.blank { aspect-ratio: 1; background: var(--flat-bg); }
.charts { display: grid; gap: 1rem; margin-top: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); }
.chart { padding: 0.9rem 0.9rem 0; max-width: 30rem; }
.chart svg { display: block; width: 100%; height: 6rem; overflow: visible; }
.chart rect { fill: var(--accent); opacity: 0.75; }
.chart line { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 3 2; vector-effect: non-scaling-stroke; }
.chart figcaption { padding: 0.4rem 0 0.8rem; }
.axis { display: flex; justify-content: space-between; font-size: 0.75rem; color: var(--soft);
  border-top: 1px solid var(--line); padding-top: 0.15rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
.results { font-size: 0.92rem; }
.results td, .results th { padding: 0.35rem 1.1rem 0.35rem 0; font-variant-numeric: tabular-nums; }
.results td { text-align: right; white-space: nowrap; }
.results thead th { text-align: right; font-weight: 400; color: var(--soft); font-size: 0.87rem; }
.results thead th:first-child, .results td.text, .results thead th.text { text-align: left; }
.results td.text { white-space: normal; overflow-wrap: anywhere; }
.results td.bad { color: var(--bad); }
.results td.image { min-width: 15rem; }
.results td.label { min-width: 8rem; max-width: 26rem; }
.results thead button { all: unset; cursor: pointer; }
.results thead button:focus-visible { outline: 2px solid var(--accent); border-radius: 3px; }
.results a { color: var(--accent); }
.bar { display: inline-block; width: 4.5rem; height: 0.5rem; margin-right: 0.6rem; border-radius: 99px;
  background: var(--flat-bg); overflow: hidden; text-align: left; }
.bar i { display: block; height: 100%; background: var(--accent); opacity: 0.75; }
.tools { display: flex; flex-wrap: wrap; gap: 0.7rem 1rem; align-items: center; margin: 0.4rem 0 0.8rem; }
.tools input[type=search], .tools select, .pager button { font: inherit; font-size: 0.92rem; color: inherit;
  background: var(--card); border: 1px solid var(--line); border-radius: 7px; padding: 0.35rem 0.7rem; }
.tools input[type=search] { flex: 1 1 14rem; max-width: 24rem; }
.tools label { font-size: 0.92rem; }
.pager { display: flex; gap: 0.7rem; }
.pager button { cursor: pointer; }
.pager button:disabled { opacity: 0.4; cursor: default; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 2px; }
.arrow { color: var(--soft); font-weight: 400; }
"""

SCRIPT = """
'use strict';
(() => {
  const source = document.getElementById('data');
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const at = Object.fromEntries(data.columns.map((name, i) => [name, i]));
  const TEXT = new Set(['image', 'label']), PAGE = 50;
  const visible = data.columns.filter((name) => name !== 'error');
  const get = (id) => document.getElementById(id);
  const percent = (x) => x === null ? '' : (100 * x).toPrecision(100 * x >= 9.95 ? 3 : 2) + ' %';
  const shown = {
    size: percent, inside: percent,
    confidence: (x) => x === null ? '' : x.toFixed(2),
    calls: (x) => x === null ? '' : x.toLocaleString('en'),
  };
  let start = 0, key = 'id', up = true, found = data.rows;
  const labels = [...new Set(data.rows.map((row) => row[at.label]).filter((x) => x !== null))].sort();
  for (const label of labels) get('label').add(new Option(label, label));

  function choose() {
    const words = get('find').value.toLowerCase().split(/\\s+/).filter(Boolean);
    const label = get('label').value;
    const outside = get('outside')?.checked, failed = get('failed')?.checked;
    found = data.rows.filter((row) => {
      if (label && row[at.label] !== label) return false;
      if (failed && row[at.error] === null) return false;
      if (outside && !(row[at.inside] !== null && row[at.inside] < data.below)) return false;
      const text = `${row[at.id]} ${row[at.image]} ${row[at.label] ?? ''} ${row[at.error] ?? ''}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const i = at[key], sign = up ? 1 : -1;
    found.sort((a, b) => {
      if (a[i] === b[i]) return a[at.id] - b[at.id];
      if (a[i] === null) return 1;
      if (b[i] === null) return -1;
      return (a[i] < b[i] ? -1 : 1) * sign;
    });
    start = 0;
    draw();
  }

  function draw() {
    const body = document.querySelector('#rows tbody');
    body.replaceChildren(...found.slice(start, start + PAGE).map((row) => {
      const line = document.createElement('tr');
      for (const name of visible) {
        const cell = line.insertCell(), value = row[at[name]];
        cell.textContent = shown[name] ? shown[name](value) : (value ?? '');
        if (TEXT.has(name)) cell.classList.add('text', name);
        if (name === 'label' && row[at.error] !== null) {
          cell.textContent = row[at.error];
          cell.classList.add('bad');
        }
        if (name === 'inside' && value !== null && value < data.below) cell.classList.add('bad');
        if (name === 'image' && data.folder !== null && row[at.error] === null && row[at.label] !== null) {
          const link = document.createElement('a'), id = String(row[at.id]).padStart(6, '0');
          const shard = String(Math.floor(row[at.id] / 1000)).padStart(3, '0');
          link.href = `${data.folder}/${shard}/${id}/report.html`;
          link.textContent = value;
          cell.replaceChildren(link);
        }
      }
      return line;
    }));
    const last = Math.min(start + PAGE, found.length);
    get('count').textContent = found.length
      ? `${(start + 1).toLocaleString('en')}–${last.toLocaleString('en')} of ${found.length.toLocaleString('en')}`
      : 'none';
    get('back').disabled = start === 0;
    get('next').disabled = last >= found.length;
    for (const button of document.querySelectorAll('#rows thead button')) {
      const name = button.dataset.name;
      button.textContent = name + (name === key ? (up ? ' ↑' : ' ↓') : '');
    }
  }

  const head = document.createElement('tr');
  for (const name of visible) {
    const cell = document.createElement('th'), button = document.createElement('button');
    if (TEXT.has(name)) cell.className = 'text';
    button.type = 'button';
    button.dataset.name = name;
    button.addEventListener('click', () => { up = key === name ? !up : true; key = name; choose(); });
    cell.append(button);
    head.append(cell);
  }
  document.querySelector('#rows thead').append(head);
  for (const id of ['find', 'label', 'outside', 'failed']) get(id)?.addEventListener('input', choose);
  document.querySelector('.tools').addEventListener('submit', (event) => event.preventDefault());
  get('back').addEventListener('click', () => { start -= PAGE; draw(); });
  get('next').addEventListener('click', () => { start += PAGE; draw(); });
  choose();
})();
"""
