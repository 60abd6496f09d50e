// Behaviour of the becausal page.
//
// gradio calls the set-up functions when a component is ready, with `element` (the component's node), `trigger` (fires a
// gradio event) and `watch` (runs a function after a property has changed). Listeners are attached to the component or to
// the document, never to the HTML inside a component: it is replaced with every update.
//
// Two document events keep the parts in step: 'bc-loading' when an image or a model starts loading, 'bc-loaded' when it
// has loaded or failed to.

window.becausal = (() => {
  'use strict';

  const announce = event => document.dispatchEvent(new Event(event));

  // Image panel: choose, drop or paste a file and upload it, or choose an example.
  const setUpImage = (element, trigger) => {
    const panel = () => element.querySelector('.bc-image');
    const showError = text => {
      const error = element.querySelector('.bc-error');
      error.textContent = text;
      error.hidden = !text;
    };
    let upload = null, turn = 0;  // each choice has a number: requests may overtake each other
    const cancelUpload = () => {
      showError('');
      upload?.abort();
      return (upload = new AbortController());
    };
    const send = async file => {
      if (!file) return;
      const limit = Number(panel().dataset.limit);
      if (file.size > limit) {
        showError(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; the limit is ${(limit / 1e6).toFixed(0)} MB`);
        return;
      }
      const {signal} = cancelUpload();
      announce('bc-loading');
      let token = null;
      try {
        const url = 'image?name=' + encodeURIComponent(file.name);
        const response = await fetch(url, {method: 'POST', body: file, signal});
        const reply = await response.json();
        if (response.ok) token = reply.token;
        else showError(reply.error);
      } catch (error) {
        if (!signal.aborted) showError('The image could not be uploaded. Is the server still running?');
      }
      if (token === null || signal.aborted) announce('bc-loaded');
      else trigger('upload', {token, turn: turn += 1});
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
      cancelUpload();
      announce('bc-loading');
      trigger('select', {example: Number(example.dataset.example), turn: turn += 1});
    });
    for (const name of ['dragover', 'drop', 'dragleave'])  // anywhere: by default the browser would open the file instead
      document.addEventListener(name, event => {
        if (!event.dataTransfer.types.includes('Files')) return;
        event.preventDefault();
        panel().classList.toggle('bc-over', name === 'dragover');
        if (name === 'drop') send(event.dataTransfer.files[0]);
      });
    document.addEventListener('paste', event => {
      const file = [...event.clipboardData.files].find(file => file.type.startsWith('image/'));
      if (file) send(file);
    });
  };

  // Explain and Compare: a click while an image is loading is held back and repeated once it has loaded.
  const setUpButtons = element => {
    const BUTTONS = '#bc-go, #bc-compare';
    const visibleError = () => document.querySelector('#bc-image .bc-error:not([hidden])');
    const errorText = () => visibleError()?.textContent || '';
    let loading = document.querySelector('#bc-image .bc-image') ? 0 : 1;  // the first image is loaded with the page
    let pending = null, errorBefore = '', timer = null;
    const showHint = () => {
      const action = pending?.id === 'bc-compare' ? 'The comparison' : 'The search';
      const text = pending ? `Loading the image. ${action} starts as soon as it is ready.` : 'Loading the image…';
      element.querySelector('.bc-hint').textContent = loading ? text : '';
    };
    const update = () => {
      for (const node of document.querySelectorAll(`#bc-image, ${BUTTONS}`)) {
        node.setAttribute('aria-busy', loading > 0);
        node.toggleAttribute('data-pressed', node === pending);
      }
      clearTimeout(timer);
      if (loading && !pending) timer = setTimeout(showHint, 400);  // most images load faster and need no hint
      else showHint();
    };
    document.addEventListener('click', event => {
      const button = event.target.closest(BUTTONS);
      if (!button) return;
      if (!loading) {
        if (visibleError()) visibleError().hidden = true;  // it was about an image that was not accepted
        return;
      }
      event.stopImmediatePropagation();
      [pending, errorBefore] = [button, errorText()];
      update();
      element.scrollIntoView({behavior: 'smooth', block: 'nearest'});
    }, true);
    document.addEventListener('bc-loading', () => {
      loading += 1;
      pending = null;
      update();
    });
    document.addEventListener('bc-loaded', () => {
      loading = Math.max(0, loading - 1);
      const button = loading ? null : pending;
      if (button) pending = null;
      update();
      if (button && (!errorText() || errorText() === errorBefore)) button.click();  // not if the image was rejected
    });
    update();
  };

  // Explanation: select a pixel with the pointer, or with the arrow keys and Enter.
  const setUpExplanation = (element, trigger) => {
    const viewOn = image => image.dataset.view.split(' ').map(Number);  // where the view lies: top, height, left, width
    const moveCursor = (image, row, column) => {
      const {rows, columns} = image.dataset;
      row = Math.min(rows - 1, Math.max(0, row));
      column = Math.min(columns - 1, Math.max(0, column));
      image.dataset.row = row;
      image.dataset.column = column;
      const cursor = image.querySelector('.bc-cursor');
      const [top, height, left, width] = viewOn(image);
      cursor.style.top = `${100 * (top + height * (row + 0.5) / rows)}%`;
      cursor.style.left = `${100 * (left + width * (column + 0.5) / columns)}%`;
      image.classList.add('bc-chosen');
      return {row, column};
    };
    element.addEventListener('click', event => {
      const image = event.target.closest('.bc-pixels');
      if (!image) return;
      const {left, top, width, height} = image.getBoundingClientRect();
      const [viewTop, viewHeight, viewLeft, viewWidth] = viewOn(image);
      const row = Math.floor(((event.clientY - top) / height - viewTop) / viewHeight * image.dataset.rows);
      const column = Math.floor(((event.clientX - left) / width - viewLeft) / viewWidth * image.dataset.columns);
      trigger('select', moveCursor(image, row, column));
    });
    element.addEventListener('keydown', event => {
      const image = event.target.closest('.bc-pixels');
      if (!image) return;
      const direction = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
      if (!direction && event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      const [down, right] = (direction || [0, 0]).map(sign => sign * Number(image.dataset.step));
      const pixel = moveCursor(image, Number(image.dataset.row) + down, Number(image.dataset.column) + right);
      if (!direction) trigger('select', pixel);
    });
  };

  // Witness: it appears below the image, so scroll until its text is visible.
  const setUpWitness = (element, trigger, watch) => {
    watch('value', () => requestAnimationFrame(() =>
      element.querySelector('p[role]')?.scrollIntoView({behavior: 'smooth', block: 'nearest'})));
  };

  // Slider: shows the first pixels of the ranking and the recorded prediction for them; no request is made. Dragged close
  // to a level it snaps to it; its buttons jump to the levels; the arrow keys reach every step.
  const setUpReveal = (element, trigger, watch) => {
    let pixels = null, dragged = false;
    const root = () => element.querySelector('.bc-reveal');
    const stops = node => [...node.querySelectorAll('[data-stop]')];
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
    const show = () => {
      const node = root();
      if (!node || !pixels) return;
      const [canvas, range, line, answer] = ['canvas', 'input', '.bc-now', '.bc-answer'].map(s => node.querySelector(s));
      const step = Number(range.value);
      drawImage(canvas, step);
      const [share, count, label, confidence, holds] = JSON.parse(node.dataset.steps)[step];
      const explained = node.dataset.label;
      const suffix = !confidence ? '' : label === explained ? ` (${confidence})` : `; ${explained}: ${confidence}`;
      const name = document.createElement('em');
      name.textContent = label;
      name.className = holds ? 'bc-yes' : 'bc-no';
      let level = '';
      for (const button of stops(node)) {
        const isHere = Number(button.dataset.stop) === step;
        button.setAttribute('aria-pressed', isHere);
        if (isHere) level = `Level ${button.textContent}: `;
      }
      answer.replaceChildren(`${level}${level ? 'f' : 'F'}irst ${share} (${count} pixels): `, name, suffix);
      canvas.setAttribute('aria-label', answer.textContent);
      range.setAttribute('aria-valuetext', answer.textContent);
      for (const end of ['x1', 'x2']) line.setAttribute(end, 100 * step / range.max);
    };
    const load = async () => {
      pixels = null;
      const node = root();
      if (!node) return;
      pixels = await Promise.all([...node.querySelectorAll('img.bc-data')].map(readPixels));
      show();
    };
    for (const [name, value] of [['pointerdown', true], ['keydown', false]])
      element.addEventListener(name, () => { dragged = value; });
    element.addEventListener('input', event => {
      const near = stops(root()).map(button => button.dataset.stop).find(stop => Math.abs(stop - event.target.value) <= 1);
      if (dragged && near !== undefined) event.target.value = near;
      show();
    });
    element.addEventListener('click', event => {
      const button = event.target.closest('[data-stop]');
      if (!button) return;
      root().querySelector('input').value = button.dataset.stop;
      show();
    });
    watch('value', load);
    load();
  };

  // After a click on Explain: open the tab of the explanation and scroll to it where it is out of view.
  const showExplanation = () => {
    const side = document.querySelector('.bc-right');
    const tab = side.querySelector('[role=tab]');
    if (tab.getAttribute('aria-selected') !== 'true') tab.click();
    if (window.innerWidth < 900 || side.getBoundingClientRect().top < 0)
      side.scrollIntoView({behavior: 'smooth', block: 'start'});
  };

  return {announce, setUpImage, setUpButtons, setUpExplanation, setUpWitness, setUpReveal, showExplanation};
})();
