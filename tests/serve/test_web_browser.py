"""The page in headless Chromium, used with the pointer and with the keyboard.

Set BECAUSAL_SCREENSHOTS to a folder to keep the screenshots.
"""

import io
import json
import os
import re
import shutil
import time
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from libraries import need
from PIL import Image
from serving import Gate, serving

from becausal.scenes import make_scene

need("starlette", "uvicorn", "python_multipart", "prometheus_client", "playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH: apt-get install chromium")

DONE = "#bc-stage [data-state=done]"
PATIENCE = 60_000  # milliseconds; the machine may be busy


STILL = """document.addEventListener('DOMContentLoaded', () => {
  const style = new CSSStyleSheet();  // the content security policy forbids a style element
  style.replaceSync('*, ::before, ::after {animation: none !important; transition: none !important}');
  document.adoptedStyleSheets.push(style);
})"""


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def tabs(browser):
    """One tab for all tests and one for those with two, and what happened in them: addresses asked for, and errors."""
    with browser.new_context() as context:
        context.add_init_script(STILL)
        asked, wrong = [], []

        def note(message):
            """Keep an error of the console, unless it is the status of a rejected upload."""
            if message.type == "error" and "400 (Bad Request)" not in message.text:
                wrong.append(f"{message.text} {message.location['url']}")

        tabs = [context.new_page(), context.new_page()]
        for page in tabs:
            page.set_default_timeout(PATIENCE)
            page.on("request", lambda request: asked.append(request.url))
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("console", note)
        yield tabs, asked, wrong


@pytest.fixture
def visit(tabs, port):
    """Opens the page; checks afterwards that no other host was requested and that no script error occurred."""
    pages, asked, wrong = tabs
    asked.clear()
    wrong.clear()
    free = iter(pages)

    def open_page():
        page = next(free)
        page.set_viewport_size({"width": 1400, "height": 1000})
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("#bc-label input")
        return page

    yield open_page
    for page in pages:
        page.unroute_all()
        page.goto("about:blank")  # its search is stopped
    assert asked
    assert {urlsplit(url).netloc for url in asked if not url.startswith(("data:", "blob:"))} == {f"127.0.0.1:{port}"}
    assert wrong == []


@pytest.fixture(scope="module")
def bus(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "my bus.png"
    Image.fromarray(make_scene(1025, label="bus").image).save(path)
    return path


def choose(page, path):
    page.set_input_files("#bc-image input[type=file]", path)
    page.wait_for_selector(f"#bc-image .bc-name:has-text('{Path(path).name}')")


def choose_model(page, name):
    page.select_option("#bc-model", name)
    page.wait_for_selector(f"#bc-image [data-model='{name}']")


def wait_for(page, expression):
    """Poll an expression; playwright's own wait_for_function uses eval, which the content security policy forbids."""
    ends = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < ends, expression
        page.wait_for_timeout(50)


def explain(page):
    page.click("#bc-go")
    page.wait_for_selector(DONE)


def keep(page, name):
    folder = os.environ.get("BECAUSAL_SCREENSHOTS")
    image = page.screenshot(full_page=True)
    if folder:
        (Path(folder) / f"{name}.png").write_bytes(image)
    return Image.open(io.BytesIO(image))


def set_slider(page, step):
    """Move the slider and return the text shown for it."""
    page.eval_on_selector(
        "#bc-reveal input", "(e, v) => {e.value = v; e.dispatchEvent(new Event('input', {bubbles: true}))}", str(step)
    )
    return page.inner_text("#bc-reveal .bc-answer")


COUNT_SHOWN = """canvas => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let shown = 0;
  for (let i = 0; i < data.length; i += 4) shown += !(data[i] === 128 && data[i + 1] === 128 && data[i + 2] === 128);
  return shown;
}"""


def check_levels(page):
    """The sets are named stops of the slider: by button, by dragging close to one, and with the keyboard."""
    levels = json.loads(page.get_attribute("#bc-stage section", "data-result"))["levels"]
    assert list(levels) == ["core", "enough"]
    for name, pixels in levels.items():
        button = page.locator(".bc-stops button", has_text=name)
        button.focus()
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "true"
        assert f"({pixels:,} pixels)" in page.inner_text("#bc-reveal .bc-answer")
        assert pixels * 0.9 <= page.eval_on_selector("#bc-reveal canvas", COUNT_SHOWN) <= pixels  # some pixels are grey
    stop = int(page.get_attribute(".bc-stops button:last-child", "data-stop"))
    assert page.inner_text("#bc-reveal .bc-answer").startswith("enough: ")
    page.dispatch_event("#bc-reveal input", "pointerdown")
    assert set_slider(page, stop + 1).startswith("enough: ")  # dragged: it snaps
    page.focus("#bc-reveal input")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#bc-reveal .bc-answer").startswith("First ")


def check_parts(page):
    """Each line of the legend shows its part of the explanation."""
    shown = "[...document.querySelectorAll('.bc-pixels > img')].filter(image => image.checkVisibility()).map(i => i.src)"
    (whole,) = page.evaluate(shown)
    page.check(".bc-key input[value=core]")
    (core,) = page.evaluate(shown)
    page.check(".bc-key input[value=enough]")
    assert page.evaluate(shown) == [whole]
    assert core != whole


def test_upload_explain_slide_choose_a_pixel_and_download(visit, bus, tmp_path):
    page = visit()
    assert page.inner_text("h1") == "becausal"
    choose(page, bus)
    assert "bus" in page.inner_text("#bc-label label:first-of-type")
    explain(page)
    assert "The model says bus" in page.inner_text(".bc-say")
    assert re.search(r"are enough: they keep bus .* Among them, .* the core, keep", page.inner_text(".bc-because"))
    assert page.locator(".bc-checks b:has-text('sufficient: yes')").count() == 2
    check_parts(page)

    wait_for(page, "document.querySelector('#bc-reveal .bc-answer').textContent.includes('bus')")
    last = int(page.get_attribute("#bc-reveal input", "max"))
    assert page.inner_text("#bc-reveal .bc-answer").count("bus") == 1
    few, all_of_it = set_slider(page, 0), set_slider(page, last)
    assert "100 % (16,384 pixels): bus (>0.99)" in all_of_it.replace("\N{NO-BREAK SPACE}", " ")
    assert page.eval_on_selector("#bc-reveal canvas", COUNT_SHOWN) > 16_000
    assert few != all_of_it
    set_slider(page, 0)
    assert page.eval_on_selector("#bc-reveal canvas", COUNT_SHOWN) <= 20
    page.focus("#bc-reveal input")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#bc-reveal .bc-answer") != few
    check_levels(page)

    pixels = page.locator(".bc-pixels")
    row, column = int(pixels.get_attribute("data-row")), int(pixels.get_attribute("data-column"))
    size = pixels.bounding_box()
    place = {"x": (column + 0.5) / 128 * size["width"], "y": (row + 0.5) / 128 * size["height"]}
    pixels.click(position=place)
    page.wait_for_selector(f"#bc-witness [data-row='{row}'][data-column='{column}'][data-part=true]")
    wait_for(page, "document.querySelector('#bc-witness p').getBoundingClientRect().bottom < innerHeight")
    said = page.inner_text("#bc-witness")
    assert "With it: bus" in said
    assert "Without it:" in said
    pixels.click(position={"x": 20, "y": 20})
    page.wait_for_selector("#bc-witness [data-part=false]")

    with page.expect_download() as fetched:
        page.click("#bc-stage a[download]")
    assert fetched.value.suggested_filename == "becausal-bus.zip"
    fetched.value.save_as(tmp_path / "answer.zip")
    names = {Path(name).name for name in zipfile.ZipFile(tmp_path / "answer.zip").namelist()}
    assert names == {"explanation.json", "arrays.npz", "explanation.png", "heatmap.png", "report.html"}


def test_the_explanation_shrinks_live_and_stop_keeps_the_best(visit, bus):
    page = visit()
    choose(page, bus)
    choose_model(page, "python:slow.py:predict")
    page.click("#bc-go")
    sizes, calls = [], []
    while len(set(sizes)) < 3:
        page.wait_for_selector("#bc-stage [data-state=running][data-size]")
        now = page.eval_on_selector("#bc-stage section", "e => [Number(e.dataset.size), Number(e.dataset.calls)]")
        sizes.append(now[0])
        calls.append(now[1])
        page.wait_for_timeout(100)
    assert sizes == sorted(sizes, reverse=True)
    assert calls == sorted(calls)
    assert page.locator("#bc-stage figure img").count() == 2
    assert page.is_disabled("#bc-go")
    page.click("#bc-stop")
    page.wait_for_selector(DONE)
    assert "Stopped early" in page.inner_text("#bc-stage")
    assert page.is_enabled("#bc-go")


GIVE = """async ([kind, place, name]) => {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 64;
  const blob = await new Promise(done => canvas.toBlob(done));
  const data = new DataTransfer();
  data.items.add(new File([blob], name, {type: 'image/png'}));
  const event = kind === 'drop' ? new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})
    : new ClipboardEvent('paste', {clipboardData: data, bubbles: true});
  document.querySelector(place).dispatchEvent(event);
}"""


@pytest.mark.smoke
def test_a_picture_can_be_dropped_and_pasted(visit):
    page = visit()
    for number, (kind, place) in enumerate((("drop", ".bc-drop"), ("drop", "#bc-stage"), ("paste", "body"))):
        page.evaluate(GIVE, [kind, place, f"{kind}-{number}.png"])
        page.wait_for_selector(f"#bc-image .bc-name:has-text('{kind}-{number}.png')")


def test_bad_uploads_are_said_and_the_picture_stays(visit, bus, tmp_path):
    page = visit()
    choose(page, bus)
    (tmp_path / "note.png").write_text("this is no image")
    page.set_input_files("#bc-image input[type=file]", tmp_path / "note.png")
    page.wait_for_selector("#bc-image .bc-error:has-text('note.png is not an image')")
    (tmp_path / "large.png").write_bytes(bytes(1_100_000))
    page.set_input_files("#bc-image input[type=file]", tmp_path / "large.png")
    page.wait_for_selector("#bc-image .bc-error:has-text('the limit is 1 MB')")
    assert page.inner_text("#bc-image .bc-name") == "my bus.png"
    explain(page)  # it is still the image that is explained
    assert "my bus.png" in page.get_attribute("#bc-stage section", "data-result")


def hold(page, address):
    """Delay the first request to this address until the returned function is called."""
    held = []
    page.route(address, lambda route: held.append(route), times=1)

    def let_go():
        while not held:
            page.wait_for_timeout(20)
        held[0].continue_()

    return let_go


@pytest.mark.parametrize("button", ["#bc-go", pytest.param("#bc-compare", marks=pytest.mark.slow)])
def test_a_button_pressed_while_the_picture_arrives_is_heeded_once_it_is_there(visit, bus, button):
    page = visit()
    if button == "#bc-compare":
        page.get_by_role("tab", name="Comparison").click()
        page.select_option("#bc-other", "centre")
    let_go = hold(page, "**/page/labels")
    page.set_input_files("#bc-image input[type=file]", bus)
    page.wait_for_selector("#bc-hint:has-text('Loading the image…')")
    page.focus(button)
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{button}[aria-busy=true][data-pressed]")
    assert "starts as soon as it is ready" in page.inner_text("#bc-hint")
    let_go()
    if button == "#bc-compare":
        page.wait_for_selector("#bc-compared [data-methods='causal,centre']")
    else:
        page.wait_for_selector(f"{DONE}[data-result*='my bus.png']")
    assert page.inner_text("#bc-hint") == ""
    assert page.get_attribute(button, "aria-busy") == "false"
    assert page.get_attribute(button, "data-pressed") is None


@pytest.mark.slow
def test_explain_pressed_before_the_page_has_its_first_picture(browser, port):
    page = browser.new_page()
    try:
        let_go = hold(page, "**/page/labels")
        page.goto(f"http://127.0.0.1:{port}/")
        page.click("#bc-go")
        let_go()
        page.wait_for_selector(f"{DONE}[data-result*='bus.png']", timeout=PATIENCE)
    finally:
        page.close()


@pytest.mark.slow
def test_a_press_for_a_picture_that_is_refused_explains_no_other(visit, bus, tmp_path):
    page = visit()
    choose(page, bus)
    (tmp_path / "note.png").write_text("this is no image")
    let_go = hold(page, "**/page/labels")
    page.set_input_files("#bc-image input[type=file]", tmp_path / "note.png")
    page.click("#bc-go")
    let_go()
    page.wait_for_selector("#bc-image .bc-error:has-text('note.png is not an image')")
    page.wait_for_selector("#bc-go[aria-busy=false]:not([data-pressed])")
    assert page.locator("#bc-stage [data-state]").count() == 0
    page.click("#bc-go")  # for the image that is there
    page.wait_for_selector(f"{DONE}[data-result*='my bus.png']")


def test_of_pictures_chosen_in_a_hurry_the_last_one_counts(visit, bus):
    page = visit()
    let_go = hold(page, "**/page/labels")
    page.set_input_files("#bc-image input[type=file]", bus)
    for number in (3, 4, 5):
        page.click(f"#bc-image [data-example='scenes/{number}']")
    page.click("#bc-go")
    page.wait_for_selector(f"{DONE}[data-result*='clock.png']")
    let_go()
    assert page.inner_text("#bc-image .bc-name") == "clock.png"


def test_another_picture_ends_the_search_and_clears_the_stage(visit, bus, tmp_path):
    page = visit()
    choose_model(page, "python:slow.py:predict")
    page.wait_for_selector("#bc-image .bc-empty:has-text('Drop an image here')")  # the examples are of the bundled model
    assert page.locator("#bc-image [data-example]").count() == 0
    page.click("#bc-go")
    page.wait_for_selector("#bc-stage .bc-error:has-text('choose an image first')")
    choose(page, bus)
    page.click("#bc-go")
    page.wait_for_selector("#bc-stage [data-state=running][data-size]")
    shutil.copy(bus, tmp_path / "another.png")
    choose(page, tmp_path / "another.png")
    page.wait_for_selector("#bc-go:enabled")
    page.wait_for_selector("#bc-stage .bc-welcome")
    page.wait_for_timeout(500)  # nothing of the old search is drawn any more
    assert page.locator("#bc-stage .bc-welcome").count() == 1


def test_one_set_that_keeps_a_share_of_the_confidence(visit):
    page = visit()
    page.click("summary")
    assert page.is_hidden("#bc-share")
    page.click("#bc-ask label:has-text('a share of the confidence')")
    page.fill("#bc-share", "0.5")
    explain(page)
    assert "50 % of the confidence" in page.inner_text(".bc-because").replace("\xa0", " ")
    assert page.locator(".bc-set").count() == 1
    assert page.locator(".bc-key input").count() == 0  # there is nothing else to show
    assert "random backgrounds: " in page.inner_text(".bc-checks")
    keep(page, "serve-share")


def test_several_explanations_and_two_methods_side_by_side(visit):
    page = visit()
    page.click("#bc-image [data-example='scenes/1']")
    page.wait_for_selector("#bc-image .bc-name:has-text('house.png')")
    page.click("summary")
    page.click("#bc-several label:has-text('2')")
    explain(page)
    page.wait_for_selector("#bc-others figure >> nth=1")
    assert "Each of these sets is enough on its own" in page.inner_text("#bc-others")
    assert page.inner_text("#bc-others").count("confidence 0.") + page.inner_text("#bc-others").count("confidence >0.") == 2
    assert page.locator("#bc-others .bc-swatch").count() == 2
    assert "1 further set is enough as well" in page.inner_text(".bc-because")
    wait_for(page, "[...document.querySelectorAll('#bc-others img')].every(image => image.naturalWidth > 0)")
    keep(page, "serve-several")
    page.get_by_role("tab", name="Comparison").click()
    page.select_option("#bc-other", "centre")
    page.click("#bc-compare")
    page.wait_for_selector("#bc-compared [data-methods='causal,centre']")
    assert page.locator("#bc-compared figure img").count() == 4
    assert "insertion" in page.inner_text("#bc-compared table")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.click("#bc-go")  # the tab of the explanation is opened
    page.wait_for_selector(DONE, state="visible")


def test_all_of_it_can_be_done_with_the_keyboard(visit):
    page = visit()
    reached = []

    def tab_to(selector):
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.outerHTML.slice(0, 80)"))
            if page.evaluate("s => document.activeElement.matches(s)", selector):
                return
        raise AssertionError(f"{selector} was not reached: {reached}")

    tab_to("#bc-image input[type=file]")
    tab_to("[data-example='scenes/1']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#bc-image .bc-name:has-text('house.png')")
    page.wait_for_selector("#bc-label label:has-text('house')")
    page.evaluate("document.activeElement.blur()")
    tab_to("#bc-go")
    page.keyboard.press("Enter")
    page.wait_for_selector(DONE)
    page.focus("#bc-model")  # passing the list of models keeps the answer
    page.keyboard.press("Tab")
    assert page.get_attribute("#bc-go", "aria-busy") == "false"
    assert page.locator(DONE).count() == 1
    tab_to(".bc-pixels")
    page.keyboard.press("Enter")
    page.wait_for_selector("#bc-witness [data-part=true]")
    for key in ("ArrowUp",) * 60:
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    page.wait_for_selector("#bc-witness [data-row='0'][data-part=false]")
    tab_to("#bc-stage a[download]")
    tab_to("#bc-reveal input")


@pytest.mark.slow
def test_two_pages_have_their_own_pictures(visit, bus):
    mine, yours = visit(), visit()
    choose(mine, bus)
    yours.click("#bc-image [data-example='scenes/2']")
    yours.wait_for_selector("#bc-image .bc-name:has-text('sailboat.png')")
    mine.click("#bc-go")
    explain(yours)
    mine.wait_for_selector(DONE)
    assert "my bus.png" in mine.get_attribute("#bc-stage section", "data-result")
    assert "sailboat.png" in yours.get_attribute("#bc-stage section", "data-result")


def test_it_looks_right(visit):
    page = visit()
    page.click("#bc-image [data-example='scenes/1']")
    page.wait_for_selector("#bc-image .bc-name:has-text('house.png')")
    explain(page)
    wait_for(page, "document.querySelector('#bc-reveal .bc-answer').textContent.includes('house')")
    page.focus(".bc-pixels")
    page.keyboard.press("Enter")
    page.wait_for_selector("#bc-witness figure >> nth=1")
    for scheme, is_dark in (("light", False), ("dark", True)):
        page.emulate_media(color_scheme=scheme)
        for width, height in ((1400, 1000), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            image = keep(page, f"serve-{'wide' if width > 700 else 'narrow'}-{scheme}")
            corner = image.convert("L").getpixel((3, 3))
            assert corner < 60 if is_dark else corner > 200
            assert image.width == width  # nothing is wider than the screen
    page.emulate_media(color_scheme="light")


def test_a_model_of_ones_own_opens_with_an_invitation_and_needs_the_token(browser):
    token = "token-of-the-browser-test"
    with serving({"gate": Gate().classifier}, token=token) as served:
        for width in (1400, 390):
            with browser.new_context(viewport={"width": width, "height": 900}) as context:
                check_invitation(context.new_page(), served.port, token, width)


def check_invitation(page, port, token, width):
    page.set_default_timeout(PATIENCE)
    assert page.goto(f"http://127.0.0.1:{port}/").status == 401
    keep(page, f"serve-token-{width}")
    page.fill("input[name=token]", "wrong")
    page.click("button")
    page.wait_for_selector("h1:has-text('This page needs a token')")
    page.fill("input[name=token]", token)
    page.click("button")
    page.wait_for_selector("#bc-image .bc-empty:has-text('Drop an image here')")
    assert page.url == f"http://127.0.0.1:{port}/"  # without the token
    assert token not in page.evaluate("document.cookie")
    assert page.locator("[data-example]").count() == 0
    assert page.locator("#bc-label input").count() == 0
    assert keep(page, f"serve-own-{width}").width == width
