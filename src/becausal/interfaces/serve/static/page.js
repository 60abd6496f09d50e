// Behaviour of the becausal page: plain JavaScript, no library, no build step.
//
// The page keeps the chosen image and sends it with every search; the server keeps results only, under an id that only this
// page knows. HTML comes from the server, escaped there. The content security policy forbids style attributes in it, so they
// arrive as data-style and are applied here.
(() => {
  'use strict';

  const find = (selector, root = document) => root.querySelector(selector);
  const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];
  const form = find('#bc-form'), go = find('#bc-go'), stop = find('#bc-stop'), compare = find('#bc-compare');
  const LOST = 'The server cannot be reached. Is it still running?';
  const MAX_FAILURES = 5;  // of a stream of events, one after the other

  const show = (selector, html) => {
    const element = find(selector);
    element.innerHTML = html;
    for (const node of findAll('[data-style]', element)) node.style.cssText = node.dataset.style;
    return element;
  };
  const showProblem = (selector, text) => {
    const section = document.createElement('section'), line = document.createElement('p');
    section.className = 'bc-stage';
    line.className = 'bc-error';
    line.setAttribute('role', 'alert');
    line.textContent = text;
    section.append(line);
    find(selector).replaceChildren(section);
  };
  const request = async (address, options) => {
    let response, reply;
    try {
      response = await fetch(address, options);
      reply = await response.json();
    } catch (error) {
      throw error.name === 'AbortError' ? error : new Error(LOST);
    }
    if (!response.ok) throw new Error(reply.error);
    return reply;
  };

  // ---------------------------------------------------------------- the image and the model
  let chosen = {}, model = find('#bc-model').value;  // chosen: {file} or {example}, or nothing yet
  let choosing = null;  // the choice that is being loaded
  const imageError = () => find('#bc-image .bc-error');
  const showImageError = text => {
    imageError().textContent = text;
    imageError().hidden = !text;
  };
  const fill = (data, {file, example}) => {
    if (file) data.set('image', file, file.name);
    if (example) data.set('example', example);
    return data;
  };
  const choose = async (image, wanted = model) => {
    const limit = Number(document.body.dataset.limit);
    choosing?.abort();
    showImageError('');
    if (image.file && image.file.size > limit) {
      const size = (image.file.size / 1e6).toFixed(1);
      showImageError(`${image.file.name} has ${size} MB; the limit is ${(limit / 1e6).toFixed(0)} MB`);
      return;
    }
    const mine = choosing = new AbortController(), data = new FormData();
    data.set('model', wanted);
    showLoading();
    try {
      const reply = await request('page/labels', {method: 'POST', body: fill(data, image), signal: mine.signal});
      if (choosing !== mine) return;
      accept(reply, image, wanted);
    } catch (error) {
      if (choosing !== mine) return;
      showImageError(error.message);
      find('#bc-model').value = model;
      waiting = null;  // the press was for this image
    }
    choosing = null;
    showLoading();
    if (waiting) waiting.click();
  };
  const accept = (reply, image, wanted) => {
    endSearch();
    const isOther = wanted !== model || !find('#bc-other').length;
    [chosen, model] = [image, wanted];
    show('#bc-image', reply.image);
    show('#bc-label', reply.labels);
    show('#bc-stage', reply.welcome);
    for (const part of ['#bc-witness', '#bc-reveal', '#bc-others']) show(part, '');
    show('#bc-compared', find('#bc-intro').innerHTML);
    const example = find('[data-example][aria-pressed=true]');
    if (!image.file) chosen = example ? {example: example.dataset.example} : {};
    if (!isOther) return;
    for (const [selector, value] of [['#bc-method', 'causal'], ['#bc-other', reply.compared]]) {
      find(selector).replaceChildren(...reply.methods.map(name => new Option(name)));
      find(selector).value = value;
    }
  };
  document.addEventListener('change', event => {
    if (event.target.type === 'file') {
      const [file] = event.target.files;
      event.target.value = '';
      if (file) choose({file});
    } else if (event.target.id === 'bc-model') choose(chosen, event.target.value);
  });
  find('#bc-image').addEventListener('click', event => {
    const example = event.target.closest('[data-example]');
    if (example) choose({example: example.dataset.example});
  });
  for (const name of ['dragover', 'drop', 'dragleave'])  // anywhere: by default the browser would open the file instead
    document.addEventListener(name, event => {
      if (!event.dataTransfer.types.includes('Files')) return;
      event.preventDefault();
      find('.bc-image').classList.toggle('bc-over', name === 'dragover');
      if (name === 'drop' && event.dataTransfer.files.length) choose({file: event.dataTransfer.files[0]});
    });
  document.addEventListener('paste', event => {
    const file = [...event.clipboardData.files].find(file => file.type.startsWith('image/'));
    if (file) choose({file});
  });

  // ---------------------------------------------------------------- while an image is loading
  let waiting = null, timer = null;  // waiting: a button that was pressed before the image was there
  const showHint = () => {
    const action = waiting === compare ? 'The comparison' : 'The search';
    const text = waiting ? `Loading the image. ${action} starts as soon as it is ready.` : 'Loading the image…';
    find('#bc-hint').textContent = choosing ? text : '';
  };
  const showLoading = () => {
    for (const node of [find('#bc-image'), go, compare]) {
      node.setAttribute('aria-busy', choosing !== null);
      node.toggleAttribute('data-pressed', choosing !== null && node === waiting);
    }
    clearTimeout(timer);
    if (choosing && !waiting) timer = setTimeout(showHint, 400);  // most images load faster and need no hint
    else showHint();
  };
  const mustWait = button => {
    waiting = choosing ? button : null;
    if (!choosing) {
      showImageError('');  // it was about an image that was not accepted
      return false;
    }
    showLoading();
    find('#bc-hint').scrollIntoView({behavior: 'smooth', block: 'nearest'});
    return true;
  };

  // ---------------------------------------------------------------- a search and its events
  let search = null;  // that runs: {place, id, events}
  const results = {};  // ids of the results that are shown, by their place
  const forget = id => {
    if (id) fetch(`page/jobs/${id}`, {method: 'DELETE', keepalive: true}).catch(() => {});
  };
  const showBusy = () => {
    go.disabled = compare.disabled = search !== null;
    stop.disabled = search === null;
  };
  const endSearch = () => {  // another image was chosen
    search?.events?.close();
    forget(search?.id);
    for (const place of Object.keys(results)) {
      forget(results[place]);
      delete results[place];
    }
    search = null;
    showBusy();
  };
  const start = async (address, place) => {
    const mine = search = {place};
    const data = fill(new FormData(form), chosen), label = find('#bc-label input:checked');
    data.set('model', model);
    if (label) data.set('rank', label.dataset.rank);
    forget(results[place]);
    delete results[place];
    showBusy();
    try {
      mine.id = (await request(address, {method: 'POST', body: data})).job;
    } catch (error) {
      if (search === mine) finish(mine, () => showProblem(place, error.message));
      return;
    }
    if (search === mine) follow(mine);
    else forget(mine.id);
  };
  const finish = (mine, display) => {
    mine.events?.close();
    search = null;
    if (mine.place === '#bc-stage') for (const part of ['#bc-witness', '#bc-reveal', '#bc-others']) show(part, '');
    display();
    showBusy();
  };
  const follow = mine => {
    let failures = 0, isFirst = true;
    const events = mine.events = new EventSource(`page/jobs/${mine.id}/events`);
    const listen = (name, react) => events.addEventListener(name, event => {
      failures = 0;
      if (search === mine) react(JSON.parse(event.data));
    });
    listen('progress', ({html}) => {
      if (isFirst && mine.place === '#bc-stage') for (const part of ['#bc-witness', '#bc-reveal', '#bc-others']) show(part, '');
      isFirst = false;
      show(mine.place, html);
    });
    listen('failed', ({error}) => finish(mine, () => showProblem(mine.place, error)));
    listen('done', reply => finish(mine, () => {
      results[mine.place] = mine.id;
      for (const [part, html] of Object.entries(reply)) show(`#bc-${part}`, html);
      loadReveal();
    }));
    events.onerror = () => {
      failures += 1;
      const isOver = events.readyState === EventSource.CLOSED || failures >= MAX_FAILURES;
      if (isOver && search === mine) finish(mine, () => showProblem(mine.place, LOST));
    };
  };
  form.addEventListener('submit', event => {
    event.preventDefault();
    if (search || mustWait(go)) return;
    showExplanation();
    start('page/explain', '#bc-stage');
  });
  compare.addEventListener('click', () => {
    if (!search && !mustWait(compare)) start('page/compare', '#bc-compared');
  });
  stop.addEventListener('click', () => {
    if (search?.id) fetch(`page/jobs/${search.id}?keep=1`, {method: 'DELETE'}).catch(() => {});
  });
  window.addEventListener('pagehide', event => {
    if (!event.persisted) endSearch();
  });

  // ---------------------------------------------------------------- tabs
  const tabs = findAll('[role=tab]');
  const openTab = tab => {
    for (const other of tabs) {
      other.setAttribute('aria-selected', other === tab);
      other.tabIndex = other === tab ? 0 : -1;
      find(`#${other.getAttribute('aria-controls')}`).hidden = other !== tab;
    }
  };
  for (const tab of tabs) {
    tab.addEventListener('click', () => openTab(tab));
    tab.addEventListener('keydown', event => {
      if (event.key !== 'ArrowLeft' && event.key !== 'ArrowRight') return;
      const next = tabs[1 - tabs.indexOf(tab)];
      openTab(next);
      next.focus();
    });
  }
  const showExplanation = () => {  // and scroll to it where it is out of view
    const side = find('.bc-right');
    openTab(tabs[0]);
    if (window.innerWidth < 900 || side.getBoundingClientRect().top < 0)
      side.scrollIntoView({behavior: 'smooth', block: 'start'});
  };

  // ---------------------------------------------------------------- pixels: with the pointer, or the arrow keys and Enter
  let latestPixel = null;
  const viewOn = image => image.dataset.view.split(' ').map(Number);  // where the view lies: top, height, left, width
  const moveCursor = (image, row, column) => {
    const {rows, columns} = image.dataset;
    row = Math.min(rows - 1, Math.max(0, row));
    column = Math.min(columns - 1, Math.max(0, column));
    image.dataset.row = row;
    image.dataset.column = column;
    const cursor = find('.bc-cursor', image);
    const [top, height, left, width] = viewOn(image);
    cursor.style.top = `${100 * (top + height * (row + 0.5) / rows)}%`;
    cursor.style.left = `${100 * (left + width * (column + 0.5) / columns)}%`;
    image.classList.add('bc-chosen');
    return {row, column};
  };
  const showWitness = async ({row, column}) => {
    const mine = latestPixel = {}, id = results['#bc-stage'];
    try {
      const {html} = await request(`page/jobs/${id}/pixel?row=${row}&column=${column}`);
      if (latestPixel !== mine || results['#bc-stage'] !== id) return;
      show('#bc-witness', html);
    } catch (error) {
      if (latestPixel === mine && results['#bc-stage'] === id) showProblem('#bc-witness', error.message);
    }
    find('#bc-witness p[role]')?.scrollIntoView({behavior: 'smooth', block: 'nearest'});
  };
  find('#bc-stage').addEventListener('click', event => {
    const image = event.target.closest('.bc-pixels');
    if (!image) return;
    const {left, top, width, height} = image.getBoundingClientRect();
    const [viewTop, viewHeight, viewLeft, viewWidth] = viewOn(image);
    const row = Math.floor(((event.clientY - top) / height - viewTop) / viewHeight * image.dataset.rows);
    const column = Math.floor(((event.clientX - left) / width - viewLeft) / viewWidth * image.dataset.columns);
    showWitness(moveCursor(image, row, column));
  });
  find('#bc-stage').addEventListener('change', ({target}) => {  // what the explanation shows: the image of the selected line
    const image = find(`[data-shown="${target.value}"]`) || find('.bc-pixels > img');
    for (const other of findAll('.bc-pixels > img')) other.hidden = other !== image;
  });
  find('#bc-stage').addEventListener('keydown', event => {
    const image = event.target.closest('.bc-pixels');
    if (!image) return;
    const direction = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (!direction && event.key !== 'Enter' && event.key !== ' ') return;
    event.preventDefault();
    const [down, right] = (direction || [0, 0]).map(sign => sign * Number(image.dataset.step));
    const pixel = moveCursor(image, Number(image.dataset.row) + down, Number(image.dataset.column) + right);
    if (!direction) showWitness(pixel);
  });

  // ---------------------------------------------------------------- slider: the first pixels of the ranking, no request
  // Dragged close to a set it snaps to it; its buttons jump to the sets; the arrow keys reach every step.
  const reveal = find('#bc-reveal');
  let pixels = null, isDragged = false;
  const stops = () => findAll('[data-stop]', reveal);
  const readPixels = async image => {
    await image.decode();
    const canvas = document.createElement('canvas');
    canvas.width = image.naturalWidth;
    canvas.height = image.naturalHeight;
    const context = canvas.getContext('2d', {willReadFrequently: true});
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, canvas.width, canvas.height);
  };
  const drawImage = (canvas, step) => {
    const [view, background, entry] = pixels;
    const image = new ImageData(view.width, view.height);
    const [target, shown, masked] = [image, view, background].map(({data}) => new Uint32Array(data.buffer));
    for (let i = 0; i < target.length; i += 1) target[i] = (entry.data[4 * i] <= step ? shown : masked)[i];
    canvas.getContext('2d').putImageData(image, 0, 0);
  };
  const showStep = () => {
    const node = find('.bc-reveal', reveal);
    if (!node || !pixels) return;
    const [canvas, range, line, answer] = ['canvas', 'input', '.bc-now', '.bc-answer'].map(s => find(s, node));
    const step = Number(range.value);
    drawImage(canvas, step);
    const [share, count, label, confidence, holds] = JSON.parse(node.dataset.steps)[step];
    const explained = node.dataset.label;
    const suffix = !confidence ? '' : label === explained ? ` (${confidence})` : `; ${explained}: ${confidence}`;
    const name = document.createElement('em');
    name.textContent = label;
    name.className = holds ? 'bc-yes' : 'bc-no';
    let level = '';
    for (const button of stops()) {
      const isHere = Number(button.dataset.stop) === step;
      button.setAttribute('aria-pressed', isHere);
      if (isHere) level = `${button.textContent}: `;
    }
    answer.replaceChildren(`${level}${level ? 'f' : 'F'}irst ${share} (${count} pixels): `, name, suffix);
    canvas.setAttribute('aria-label', answer.textContent);
    range.setAttribute('aria-valuetext', answer.textContent);
    for (const end of ['x1', 'x2']) line.setAttribute(end, 100 * step / range.max);
  };
  const loadReveal = async () => {
    pixels = null;
    const images = findAll('img.bc-data', reveal);
    if (!images.length) return;
    pixels = await Promise.all(images.map(readPixels));
    showStep();
  };
  for (const [name, value] of [['pointerdown', true], ['keydown', false]])
    reveal.addEventListener(name, () => { isDragged = value; });
  reveal.addEventListener('input', event => {
    const near = stops().map(button => button.dataset.stop).find(stop => Math.abs(stop - event.target.value) <= 1);
    if (isDragged && near !== undefined) event.target.value = near;
    showStep();
  });
  reveal.addEventListener('click', event => {
    const button = event.target.closest('[data-stop]');
    if (!button) return;
    find('input', reveal).value = button.dataset.stop;
    showStep();
  });

  choose({});  // the first example, or an invitation
})();
