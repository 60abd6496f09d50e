"""The page's own script, in the parts that belong to one piece of HTML each. `element` and `trigger` come from gradio.

Listeners sit on the piece itself, not on what is inside: its contents are replaced with every answer.
"""

#: The picture: choose, drop or paste a file, send it to the server, say what is wrong with it; or take an example.
PICTURE = """
const box = () => element.querySelector('.bc-picture');
const complain = text => {
  const place = element.querySelector('.bc-error');
  place.textContent = text;
  place.hidden = !text;
};
const send = async file => {
  if (!file) return;
  complain('');
  const limit = Number(box().dataset.limit);
  if (file.size > limit) {
    complain(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; this page takes at most ${(limit / 1e6).toFixed(0)} MB`);
    return;
  }
  box().classList.add('bc-busy');
  try {
    const answer = await fetch('picture?name=' + encodeURIComponent(file.name), {method: 'POST', body: file});
    const said = await answer.json();
    if (answer.ok) trigger('upload', {token: said.token});
    else complain(said.error);
  } catch (error) {
    complain('The picture could not be sent: is the server still running?');
  } finally {
    box().classList.remove('bc-busy');
  }
};
element.addEventListener('change', event => {
  if (event.target.type === 'file') {
    send(event.target.files[0]);
    event.target.value = '';
  }
});
element.addEventListener('click', event => {
  const example = event.target.closest('[data-example]');
  if (example) trigger('select', {example: Number(example.dataset.example)});
});
for (const name of ['dragover', 'drop', 'dragleave'])
  element.addEventListener(name, event => {
    event.preventDefault();
    box().classList.toggle('bc-over', name === 'dragover');
    if (name === 'drop') send(event.dataTransfer.files[0]);
  });
document.addEventListener('paste', event => {
  const file = [...event.clipboardData.files].find(file => file.type.startsWith('image/'));
  if (file) send(file);
});
"""

#: The explanation: choose a pixel with the pointer, or with the arrow keys and Enter.
STAGE = """
const ask = (figure, row, column) => {
  const {rows, columns} = figure.dataset;
  row = Math.min(rows - 1, Math.max(0, row));
  column = Math.min(columns - 1, Math.max(0, column));
  figure.dataset.row = row;
  figure.dataset.column = column;
  const cursor = figure.querySelector('.bc-cursor');
  cursor.style.top = `${100 * (row + 0.5) / rows}%`;
  cursor.style.left = `${100 * (column + 0.5) / columns}%`;
  figure.classList.add('bc-chosen');
  return {row, column};
};
element.addEventListener('click', event => {
  const figure = event.target.closest('.bc-pixels');
  if (!figure) return;
  const {left, top, width, height} = figure.getBoundingClientRect();
  const row = Math.floor((event.clientY - top) / height * figure.dataset.rows);
  const column = Math.floor((event.clientX - left) / width * figure.dataset.columns);
  trigger('select', ask(figure, row, column));
});
element.addEventListener('keydown', event => {
  const figure = event.target.closest('.bc-pixels');
  if (!figure) return;
  const way = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
  if (!way && event.key !== 'Enter' && event.key !== ' ') return;
  event.preventDefault();
  const step = way ? Number(figure.dataset.step) : 0;
  const [down, across] = way || [0, 0];
  const place = ask(figure, Number(figure.dataset.row) + step * down, Number(figure.dataset.column) + step * across);
  if (!way) trigger('select', place);
});
"""

#: The slider: shows as much of the ranking as it says, and what the classifier said to that; asks nobody.
REVEAL = """
let pixels = null;
const root = () => element.querySelector('.bc-reveal');
const read = async image => {
  await image.decode();
  const canvas = document.createElement('canvas');
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  const context = canvas.getContext('2d', {willReadFrequently: true});
  context.drawImage(image, 0, 0);
  return context.getImageData(0, 0, canvas.width, canvas.height);
};
const show = () => {
  const here = root();
  if (!here || !pixels) return;
  const [view, hidden, entry] = pixels;
  const range = here.querySelector('input');
  const step = Number(range.value);
  const out = new ImageData(view.width, view.height);
  for (let i = 0; i < out.data.length; i += 4) {
    const from = entry.data[i] <= step ? view.data : hidden.data;
    out.data[i] = from[i];
    out.data[i + 1] = from[i + 1];
    out.data[i + 2] = from[i + 2];
    out.data[i + 3] = 255;
  }
  const canvas = here.querySelector('canvas');
  canvas.getContext('2d').putImageData(out, 0, 0);
  const [share, count, label, confidence, holds] = JSON.parse(here.dataset.steps)[step];
  const own = label === here.dataset.label;
  const sure = confidence ? (own ? ` (${confidence})` : `, and ${here.dataset.label} has ${confidence}`) : '';
  const answer = here.querySelector('.bc-answer');
  answer.replaceChildren();
  const add = (tag, text, kind) => {
    const node = document.createElement(tag);
    node.textContent = text;
    if (kind) node.className = kind;
    answer.append(node);
  };
  add('span', `The first ${share} (${count} pixels): `);
  add('em', label, holds ? 'bc-yes' : 'bc-no');
  add('span', sure);
  canvas.setAttribute('aria-label', answer.textContent);
  range.setAttribute('aria-valuetext', answer.textContent);
  const line = here.querySelector('line');
  const across = 100 * step / range.max;
  line.setAttribute('x1', across);
  line.setAttribute('x2', across);
};
const begin = async () => {
  pixels = null;
  const here = root();
  if (!here) return;
  pixels = await Promise.all([...here.querySelectorAll('img.bc-data')].map(read));
  show();
};
element.addEventListener('input', show);
watch('value', begin);
begin();
"""
