'use strict';
// The table of all images: filtered, sorted and shown 50 rows at a time.
(() => {
  const source = document.getElementById('data');
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const at = Object.fromEntries(data.columns.map((name, i) => [name, i]));
  const TEXT = new Set(['image', 'label', 'place', 'level']), PAGE = 50;
  const visible = data.columns.filter((name) => name !== 'error');
  const hasPictures = Object.keys(data.pictures).length > 0;
  const get = (id) => document.getElementById(id);
  const percent = (x) => x === 0 || x >= 0.0995 ? (100 * x).toFixed(0) : (100 * x).toPrecision(2);
  const probability = (x) => x >= 0.995 && x < 1 ? '>0.99' : x > 0 && x < 0.005 ? '<0.01' : x.toFixed(2);
  const format = {
    size: (x) => `${percent(x)} %`,
    core_size: (x) => `${percent(x)} %`,
    backgrounds: (x) => `${percent(x)} %`,
    core_backgrounds: (x) => `${percent(x)} %`,
    inside: (x) => `${percent(x)} %`,
    confidence: probability,
    alone: probability,
    calls: (x) => x.toLocaleString('en'),
  };
  let start = 0, key = 'id', ascending = true, found = data.rows;
  const labels = [...new Set(data.rows.map((row) => row[at.label]).filter((x) => x !== null))].sort();
  for (const label of labels) get('label').add(new Option(label, label));

  function update() {
    const words = get('find').value.toLowerCase().split(/\s+/).filter(Boolean);
    const label = get('label').value;
    const outside = get('outside')?.checked, failed = get('failed')?.checked;
    found = data.rows.filter((row) => {
      if (label && row[at.label] !== label) return false;
      if (failed && row[at.error] === null) return false;
      if (outside && !(row[at.inside] !== null && row[at.inside] < data.below)) return false;
      const text = `${row[at.id]} ${row[at.image]} ${row[at.label] ?? ''} ${row[at.error] ?? ''}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const i = at[key], sign = ascending ? 1 : -1;
    found.sort((a, b) => {
      if (a[i] === b[i]) return a[at.id] - b[at.id];
      if (a[i] === null) return 1;
      if (b[i] === null) return -1;
      return (a[i] < b[i] ? -1 : 1) * sign;
    });
    start = 0;
    draw();
  }

  function fill(cell, name, row) {
    const value = row[at[name]];
    cell.textContent = value === null ? '' : format[name] ? format[name](value) : value;
    if (TEXT.has(name)) cell.classList.add('text', name);
    if (name === 'label' && row[at.error] !== null) {
      cell.textContent = row[at.error];
      cell.classList.add('bad');
    }
    if (name === 'inside' && value !== null && value < data.below) cell.classList.add('bad');
    if (name === 'image' && data.folder !== null && row[at.error] === null && row[at.label] !== null) {
      const link = document.createElement('a'), number = Math.floor(row[at.id] / data.per_image);
      const id = String(number).padStart(6, '0'), shard = String(Math.floor(number / 1000)).padStart(3, '0');
      const box = data.per_image > 1 ? `/box-${row[at.id] % data.per_image + 1}` : '';
      link.href = `${data.folder}/${shard}/${id}${box}/report.html`;
      link.textContent = value;
      cell.replaceChildren(link);
    }
  }

  function show(cell, row) {
    cell.className = 'picture';
    const source = data.pictures[row[at.id]];
    if (!source) return;
    const picture = new Image();
    picture.loading = 'lazy';
    picture.alt = '';
    picture.src = source;
    cell.append(picture);
  }

  function draw() {
    document.querySelector('#rows tbody').replaceChildren(...found.slice(start, start + PAGE).map((row) => {
      const line = document.createElement('tr');
      if (hasPictures) show(line.insertCell(), row);
      for (const [i, name] of visible.entries()) {
        const cell = line.insertCell();
        fill(cell, name, row);
        if (name === 'label' && row[at.error] !== null) {
          cell.colSpan = visible.length - i;
          break;
        }
      }
      return line;
    }));
    const last = Math.min(start + PAGE, found.length);
    get('count').textContent = found.length
      ? `${(start + 1).toLocaleString('en')}–${last.toLocaleString('en')} of ${found.length.toLocaleString('en')}`
      : 'no matches';
    get('back').disabled = start === 0;
    get('next').disabled = last >= found.length;
    for (const button of document.querySelectorAll('#rows thead button')) {
      const name = button.dataset.name;
      button.textContent = (data.titles[name] ?? name) + (name === key ? (ascending ? ' ↑' : ' ↓') : '');
      button.parentElement.ariaSort = name === key ? (ascending ? 'ascending' : 'descending') : 'none';
    }
  }

  const head = document.createElement('tr');
  if (hasPictures) head.append(document.createElement('td'));
  for (const name of visible) {
    const cell = document.createElement('th'), button = document.createElement('button');
    cell.scope = 'col';
    if (TEXT.has(name)) cell.className = 'text';
    button.type = 'button';
    button.dataset.name = name;
    button.addEventListener('click', () => { ascending = key === name ? !ascending : true; key = name; update(); });
    cell.append(button);
    head.append(cell);
  }
  document.querySelector('#rows thead').append(head);
  for (const id of ['find', 'label', 'outside', 'failed']) get(id)?.addEventListener('input', update);
  document.querySelector('.tools').addEventListener('submit', (event) => event.preventDefault());
  get('back').addEventListener('click', () => { start -= PAGE; draw(); });
  get('next').addEventListener('click', () => { start += PAGE; draw(); });
  update();
})();
