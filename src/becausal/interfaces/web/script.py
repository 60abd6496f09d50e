"""The page's own script, in the parts that belong to one piece of HTML each. `element` and `trigger` come from gradio.

Listeners sit on the piece itself, or on the document, not on what is inside: its contents are replaced with every answer.
"""

#: The picture: choose, drop or paste a file, send it to the server, say what is wrong with it; or take an example.
PICTURE = """
const box = () => element.querySelector('.bc-picture');
const complain = text => {
  const place = element.querySelector('.bc-error');
  place.textContent = text;
  place.hidden = !text;
};
const tell = what => document.dispatchEvent(new Event('bc-' + what));
let sending = null;
const change = () => {  // another picture is wanted: one that is still being sent no longer is
  complain('');
  sending?.abort();
  return (sending = new AbortController());
};
const send = async file => {
  if (!file) return;
  const limit = Number(box().dataset.limit);
  if (file.size > limit) {
    complain(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; this page takes at most ${(limit / 1e6).toFixed(0)} MB`);
    return;
  }
  const own = change();
  tell('coming');
  let token = null;
  try {
    const address = 'picture?name=' + encodeURIComponent(file.name);
    const answer = await fetch(address, {method: 'POST', body: file, signal: own.signal});
    const said = await answer.json();
    if (answer.ok) token = said.token;
    else complain(said.error);
  } catch (error) {
    if (!own.signal.aborted) complain('The picture could not be sent: is the server still running?');
  }
  if (token === null || own.signal.aborted) tell('there');
  else trigger('upload', {token});
};
element.addEventListener('change', event => {
  if (event.target.type === 'file') {
    send(event.target.files[0]);
    event.target.value = '';
  }
});
element.addEventListener('click', event => {
  const example = event.target.closest('[data-example]');
  if (!example) return;
  change();
  tell('coming');
  trigger('select', {example: Number(example.dataset.example)});
});
for (const name of ['dragover', 'drop', 'dragleave'])  // anywhere: a browser would leave the page for the picture
  document.addEventListener(name, event => {
    if (!event.dataTransfer.types.includes('Files')) return;
    event.preventDefault();
    box().classList.toggle('bc-over', name === 'dragover');
    if (name === 'drop') send(event.dataTransfer.files[0]);
  });
document.addEventListener('paste', event => {
  const file = [...event.clipboardData.files].find(file => file.type.startsWith('image/'));
  if (file) send(file);
});
"""

#: For the events of other parts: a picture is on its way, a picture is there, or there is none after all.
COMING = "(...values) => { document.dispatchEvent(new Event('bc-coming')); return values; }"
THERE = "() => { document.dispatchEvent(new Event('bc-there')); }"

#: Explain and Compare: pressed while a picture is on its way, they are pressed again once it is there.
PRESSES = """
const BUTTONS = '#bc-go, #bc-compare';
const wrong = () => document.querySelector('#bc-picture .bc-error:not([hidden])');
const complaint = () => wrong()?.textContent || '';
let coming = document.querySelector('#bc-picture .bc-picture') ? 0 : 1;  // the page itself brings the first
let pressed = null, before = '', late = null;
const say = () => {
  const doing = pressed && pressed.id === 'bc-compare' ? 'compared' : 'explained';
  const then = pressed ? `: it is ${doing} as soon as it is here.` : '…';
  element.querySelector('.bc-hint').textContent = coming ? `The picture is on its way${then}` : '';
};
const show = () => {
  for (const part of document.querySelectorAll(`#bc-picture, ${BUTTONS}`)) {
    part.setAttribute('aria-busy', coming > 0);
    part.toggleAttribute('data-pressed', part === pressed);
  }
  clearTimeout(late);
  if (coming && !pressed) late = setTimeout(say, 400);  // most come sooner, and need no word
  else say();
};
document.addEventListener('click', event => {
  const button = event.target.closest(BUTTONS);
  if (!button) return;
  if (!coming) {
    if (wrong()) wrong().hidden = true;  // it was of a picture that is not the one in question
    return;
  }
  event.stopImmediatePropagation();
  [pressed, before] = [button, complaint()];
  show();
  element.scrollIntoView({behavior: 'smooth', block: 'nearest'});
}, true);
document.addEventListener('bc-coming', () => {
  coming += 1;
  pressed = null;
  show();
});
document.addEventListener('bc-there', () => {
  coming = Math.max(0, coming - 1);
  const button = coming ? null : pressed;
  if (button) pressed = null;
  show();
  if (button && (!complaint() || complaint() === before)) button.click();  // not where the picture was refused
});
show();
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

#: Why a pixel is needed stands below the picture it was chosen on: far enough up to be seen.
WITNESS = """
watch('value', () => requestAnimationFrame(() =>
  element.querySelector('p[role]')?.scrollIntoView({behavior: 'smooth', block: 'nearest'})));
"""

#: After Explain: the side of the page where the answer comes, where it is not in sight.
TO_THE_ANSWER = """() => {
  const side = document.querySelector('.bc-right');
  const tab = side.querySelector('[role=tab]');
  if (tab.getAttribute('aria-selected') !== 'true') tab.click();
  if (window.innerWidth < 900 || side.getBoundingClientRect().top < 0)
    side.scrollIntoView({behavior: 'smooth', block: 'start'});
}"""

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
