"""docs/explore.html as a reader uses it: every panel opened, moved and read, on phone and desk, light and dark."""

import re
from urllib.parse import parse_qs

import pytest

PANELS = ("bounds", "games", "landscape", "theorem")
VIEWS = [(width, scheme) for width in (1200, 390) for scheme in ("light", "dark")]
SAY = "document.querySelector('section:not([hidden]) .say').textContent"
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
# The visible charts, each as a number that changes when it does.
CHARTS = """[...document.querySelectorAll('section:not([hidden]) canvas')].map(canvas => {
  const picture = canvas.toDataURL();
  let sum = 0;
  for (let i = 0; i < picture.length; i++) sum = (sum * 31 + picture.charCodeAt(i)) | 0;
  return sum;
})"""
RANGES = "[...document.querySelectorAll('section:not([hidden]) input')].filter(each => each.offsetParent)"
CONTROLS = (
    "[...document.querySelectorAll('section:not([hidden]) :is(input, select)')].filter(each => each.offsetParent)"
)


@pytest.fixture(autouse=True)
def _quiet(browser):
    """No message in the console, and no request but for the page itself."""
    browser.messages.clear()
    browser.requests.clear()
    yield
    assert browser.messages == []
    assert all(re.match(r"about:blank|file://.*/explore\.html", address) for address in browser.requests)


def show(browser, page, fragment, width=1200, scheme="light", motion="no-preference"):
    browser.show(width, 900, scheme, motion)
    browser.open(page, fragment)
    browser.run(DRAWN)


def values(browser):
    """The panel in the address and its settings."""
    panel, _, query = browser.run("new Promise(done => setTimeout(() => done(location.hash), 300))")[1:].partition("?")
    return panel, {name: value for name, (value,) in parse_qs(query).items()}


def test_the_page_is_one_small_file(page):
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) <= 200_000
    assert not re.search(r"<(link|img|iframe)\b|<script[^>]* src|@import|\burl\(|\bfetch\(|\bimport\b", text)


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
@pytest.mark.parametrize("panel", PANELS)
def test_every_control_moves_the_panel(browser, page, panel, width, scheme):
    show(browser, page, f"#{panel}", width, scheme)
    assert browser.run("document.querySelector('nav [aria-current]').hash") == f"#{panel}"
    assert browser.run("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    names = browser.run(f"{CONTROLS}.map(each => each.labels[0].textContent)")
    assert len(names) == len(set(names)) >= 2
    for i, name in enumerate(names):
        before = browser.run(CHARTS)
        label = browser.run(f"""{{
          const control = {CONTROLS}[{i}];
          if (control.options) control.selectedIndex = (control.selectedIndex + 1) % control.options.length;
          else control.value = Number(control.value) + (Number(control.value) < control.max / 2 ? 2 : -2);
          control.dispatchEvent(new Event('input', {{ bubbles: true }}));
          control.labels[0].textContent;
        }}""")
        assert label == name
        browser.run(DRAWN)
        assert browser.run(CHARTS) != before, f"{name} changes nothing"
        if "Theorem" in name or "Landscape" in name or name == "Bounds":
            show(browser, page, f"#{panel}", width, scheme)  # its controls may be others now
    assert not re.search(r"NaN|undefined|null|Infinity", browser.run(SAY))


@pytest.mark.parametrize("panel", PANELS)
def test_the_address_has_the_settings(browser, page, panel):
    show(browser, page, f"#{panel}")
    browser.run(f"{RANGES}.forEach(each => {{ each.value = each.max / 3; each.oninput(); }})")
    browser.run(DRAWN)
    name, settings = values(browser)
    assert name == panel
    assert len(settings) >= 2
    charts, sentence, address = (browser.run(what) for what in (CHARTS, SAY, "location.hash"))
    show(browser, page, address)
    assert browser.run(CHARTS) == charts
    assert browser.run(SAY) == sentence
    assert values(browser) == (name, settings)


@pytest.mark.parametrize(
    "fragment",
    ["#bounds?lr=NaN&gamma=-1&steps=1e99&family=cubic", "#games?theorem=9&C=&alpha=x&t=-5", "#nothing?x=1",
     "#landscape?surface=__proto__&x=1e999&steps=0", "#theorem?T=Infinity&bounds=<b>", "#games?beta2=0&beta1=0.95&C=2",
     "#landscape?final_lr=10&lr=1&noise=5", "#landscape?surface=rosenbrock&final_lr=1&t=2000&steps=2000",
     "#theorem?bounds=harmonic&gamma=0.0001&final_lr=0.001&T=1"],
)  # fmt: skip
def test_any_address_shows_a_panel(browser, page, fragment):
    show(browser, page, fragment)
    assert len(browser.run(SAY)) > 40
    assert not re.search(r"NaN|undefined|null|Infinity", browser.run(SAY))


@pytest.mark.parametrize("panel", PANELS)
def test_play_pause_and_step(browser, page, panel):
    show(browser, page, f"#{panel}?{'T' if panel == 'theorem' else 't'}=3")
    time = "Number(document.querySelector('section:not([hidden]) .time output').textContent.replace(',', ''))"
    button = "document.querySelectorAll('section:not([hidden]) .time button')"
    assert browser.run(time) == 3
    browser.run(f"{button}[1].click()")
    browser.run(DRAWN)
    assert browser.run(time) == 4
    live = "document.querySelector('section:not([hidden]) .say').ariaLive"
    assert browser.run(live) == "polite"
    browser.run(f"{button}[0].click()")
    assert (browser.run(f"{button}[0].textContent"), browser.run(live)) == ("Pause", "off")
    browser.run(
        f"new Promise(done => {{ const look = () => {time} > 6 ? done() : requestAnimationFrame(look); look(); }})"
    )
    browser.run(f"{button}[0].click()")
    assert (browser.run(f"{button}[0].textContent"), browser.run(live)) == ("Play", "polite")
    browser.run(DRAWN)
    stopped = browser.run(time)
    browser.run(DRAWN)
    assert browser.run(time) == stopped > 6


def test_without_motion_play_shows_the_end(browser, page):
    show(browser, page, "#games?t=3&steps=1000", motion="reduce")
    browser.run("document.querySelector('section:not([hidden]) .time button').click()")
    browser.run(DRAWN)
    assert browser.run(SAY).startswith("Step 1,000:")
    assert browser.run("document.querySelector('section:not([hidden]) .time button').textContent") == "Play"


def test_the_keyboard_reaches_and_moves_everything(browser, page):
    show(browser, page, "#bounds")
    reached = []
    for _ in range(40):
        browser.key("Tab")
        seen = (
            "(e => [e.tagName, e.id || e.textContent.trim(), getComputedStyle(e).outlineStyle])(document.activeElement)"
        )
        reached.append(browser.run(seen))
    assert {outline for tag, _, outline in reached if tag != "BODY"} == {"solid"}, "the focus is always seen"
    names = {name for _, name, _ in reached}
    assert names >= {"Bounds", "Adam fails", "Landscape", "Theorem", "bounds-family", "bounds-lr", "bounds-final_lr",
                     "bounds-gamma", "bounds-root_v", "bounds-steps", "bounds-t", "Play", "Step", "copy"}  # fmt: skip
    browser.run("document.getElementById('bounds-t').focus()")
    before = browser.run(SAY)
    for key in ("ArrowLeft", "ArrowLeft"):
        browser.key(key)
    browser.run(DRAWN)
    assert browser.run(SAY) != before
    browser.run("document.querySelector('nav a[href=\"#games\"]').focus()")
    browser.key("Enter", "\r")
    browser.run(DRAWN)
    assert browser.run("document.querySelector('section:not([hidden]) h2').textContent") == "Games on which Adam fails"


BOX = "(box => [box.x, box.y, box.width, box.height])(document.querySelector('%s').getBoundingClientRect())"


def test_dragging_and_clicking(browser, page):
    show(browser, page, "#bounds")
    x, y, width, height = browser.run(BOX % ".handle")
    x, y = x + width / 2, y + height / 2
    mouse = dict(button="left", buttons=1, clickCount=1)
    for kind, move in (("mousePressed", 0), ("mouseMoved", 40), ("mouseMoved", 80), ("mouseReleased", 80)):
        browser.send("Input.dispatchMouseEvent", type=kind, x=x, y=y + move, **mouse)
    _, settings = values(browser)
    assert float(settings["root_v"]) > 5e-3, "a lower rate has a larger gradient"
    show(browser, page, "#landscape")
    x, y, width, height = browser.run(BOX % ".map canvas")
    x, y = x + 0.75 * width, y + 0.3 * height
    for kind in ("mousePressed", "mouseReleased"):
        browser.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **mouse)
    _, settings = values(browser)
    assert float(settings["x"]) > 0.5
    assert float(settings["y"]) > 0.2


# The colours of every visible text and of what is behind it.
TEXTS = """[...document.querySelectorAll('body *')].filter(each => each.offsetParent && [...each.childNodes].some(
    node => node.nodeType === 3 && node.data.trim())).map(each => {
  const ink = getComputedStyle(each).color;
  for (let at = each; at; at = at.parentElement) {
    const back = getComputedStyle(at).backgroundColor;
    if (!/, 0\\)$/.test(back)) return [ink, back, each.textContent.trim().slice(0, 40)];
  }
})"""
INKS = ("ink", "muted", "good", "bad", "accent", "adabound", "adam", "sgd", "amsgrad", "amsbound")


def luminance(color):
    parts = [int(each) / 255 for each in re.findall(r"\d+", color)[:3]]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(ink, back):
    low, high = sorted((luminance(ink), luminance(back)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(browser, page, scheme):
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    for panel in PANELS:
        show(browser, page, f"#{panel}", scheme=scheme)
        for ink, back, text in browser.run(TEXTS):
            assert contrast(ink, back) >= 4.5, text
    # The texts and lines on the charts.
    paint = "(ink => { document.body.style.color = `var(--${ink})`; return getComputedStyle(document.body).color; })"
    card = browser.run(f"{paint}('card')")
    for ink in INKS:
        assert contrast(browser.run(f"{paint}('{ink}')"), card) >= 4.5, ink


@pytest.mark.parametrize("panel", PANELS)
def test_what_a_screen_reader_says(browser, page, panel):
    show(browser, page, f"#{panel}")
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    said = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]}
    widgets = {(role, name) for role, name in said if role in ("slider", "combobox", "button", "link", "image", "img")}
    assert {role for role, _ in widgets} >= {"slider", "combobox", "button", "link"}
    assert all(name for _, name in widgets), widgets
    # A slider says its number, not its place.
    shown = "each.closest('.control').querySelector('output').textContent"
    spoken = browser.run(f"{RANGES}.map(each => [each.ariaValueText, {shown}])")
    assert all(value == shown != "" for value, shown in spoken)


def test_it_is_fast_enough(browser, page):
    """The limits are ten times what it takes, for a busy machine."""
    show(browser, page, "#games?theorem=2&steps=100000")
    assert browser.run("performance.getEntriesByName('ready')[0].startTime") < 2000  # milliseconds
    taken = browser.run("""(() => {
      const started = performance.now();
      rule.play(rule.theorem2(20), 'AdaBound', { beta2: 0.5, gamma: 0.5 }, 100000);
      return performance.now() - started;
    })()""")
    assert taken < 1000


def test_the_sentences_are_true(browser, page):
    """Of the panels' first settings, with numbers that the theory's pages have."""
    show(browser, page, "#bounds")
    assert "From step 10,000 on all rates are within 10 % of final_lr" in browser.run(SAY)
    assert browser.run("document.getElementById('call').textContent") == (
        "optimizer = dynabound.AdaBound(model.parameters(), lr=0.001, final_lr=0.1, gamma=0.001)"
    )
    show(browser, page, "#games?theorem=1")
    assert (
        "Adam has not been left of 0; AdaBound was first left of 0 at step 1,103; SGD was first left of 0 at step 3"
        in browser.run(SAY)
    )
    show(browser, page, "#games")
    assert "Adam is at +1.00" in browser.run(SAY)
    show(browser, page, "#theorem?T=100")
    assert "AdaBound’s regret is 200, and Theorem 4 allows 39: the theorem’s inequality fails" in browser.run(SAY)
    show(browser, page, "#theorem?T=2")
    assert "the inequality holds here" in browser.run(SAY)
