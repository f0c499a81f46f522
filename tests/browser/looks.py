"""What is asked of every page: that nothing failed, and that all text can be read."""

from __future__ import annotations

from tests.browser import chromium
from tests.support import ROOT

SCREENSHOTS = ROOT / "build/screenshots"

# The contrast of two colours over what is behind them; a canvas turns any colour into red, green and blue.
CONTRAST = """
  const brush = Object.assign(document.createElement("canvas"), { width: 1, height: 1 })
    .getContext("2d", { willReadFrequently: true });
  const paint = (colours) => {
    brush.clearRect(0, 0, 1, 1);
    for (const colour of colours) { brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1); }
    return [...brush.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (colours) => paint(colours).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const backgrounds = (node) => {
    const out = [];
    for (let at = node; at; at = at.parentElement) out.unshift(getComputedStyle(at).backgroundColor);
    return out;
  };
  const out = {};
  const compare = (name, colour, behind) => {
    const pair = [light([...behind, colour]), light(behind)].sort((a, b) => b - a);
    out[name] = Math.min(out[name] ?? Infinity, (pair[0] + 0.05) / (pair[1] + 0.05));
  };
  const nameOf = (node) => `${node.tagName} ${node.getAttribute("class") ?? ""} ${node.id}`.trim();
  const fields = "select, textarea, input:not([type=checkbox], [type=range], [type=file])";
"""

# Of every text: also that of pictures, of fields and of what stands in an empty field.
CONTRASTS = f"""(() => {{{CONTRAST}
  for (const node of document.querySelectorAll("body *")) {{
    if (!node.getClientRects().length || node.matches("script, style, template")) continue;
    const style = getComputedStyle(node);
    const hint = getComputedStyle(node, "::placeholder").color;
    if (node.placeholder) compare(`${{nameOf(node)}}::placeholder`, hint, backgrounds(node));
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own && !node.matches(fields)) continue;
    compare(nameOf(node), node instanceof SVGElement ? style.fill : style.color, backgrounds(node));
  }}
  return out;
}})()"""

# Of what is no text but has to be seen: the borders of controls that can be used, and the marks of delimiters.
EDGES = f"""(() => {{{CONTRAST}
  for (const node of document.querySelectorAll(`button, ${{fields}}`)) {{
    if (!node.getClientRects().length || node.ariaDisabled === "true") continue;
    compare(nameOf(node), getComputedStyle(node).borderTopColor, backgrounds(node.parentElement));
  }}
  for (const node of document.querySelectorAll(".chip.delimiter")) {{
    const beside = node.matches(".now") ? node.parentElement : node; // a gap is between them
    compare(nameOf(node), getComputedStyle(node).borderRightColor, backgrounds(beside));
  }}
  return out;
}})()"""

# Boxes of text and controls that lie over each other, and what sticks out of the window.
COLLISIONS = """(() => {
  const kinds = "button, input, select, textarea, label, legend, h1, h2, h3, dt, dd, summary, p, output, li, sup, "
    + ".chip, .mark, .label, .tick, .verdict, svg text";
  const classOf = (node) => node.getAttribute("class") ?? "";
  const nameOf = (node) => `${node.tagName} ${classOf(node)} ${node.id} ${node.textContent.slice(0, 20)}`;
  const { max, min } = Math;
  const seen = (node, { left, right, top, bottom }) => { // what a box that scrolls shows of it
    const box = node.parentElement.closest(".scroll, .sequence, .answer")?.getBoundingClientRect();
    const cut = box ?? { left: -Infinity, right: Infinity, top: -Infinity, bottom: Infinity };
    const [begin, end] = [max(left, cut.left), min(right, cut.right)];
    return { left: begin, right: end, top: max(top, cut.top), bottom: min(bottom, cut.bottom) };
  };
  const visible = (node) => node.checkVisibility({ visibilityProperty: true });
  const shown = [...document.querySelectorAll(kinds)].filter(visible);
  const boxes = shown.flatMap((node) => [...node.getClientRects()].map((box) => ({ node, box: seen(node, box) })))
    .filter(({ box }) => box.right > box.left && box.bottom > box.top);
  const out = boxes.filter(({ box }) => box.right > innerWidth + 1 || box.left < -1).map(({ node }) => nameOf(node));
  boxes.forEach(({ node, box }, i) => {
    for (const other of boxes.slice(i + 1)) {
      if (min(box.right, other.box.right) - max(box.left, other.box.left) <= 2) continue;
      if (min(box.bottom, other.box.bottom) - max(box.top, other.box.top) <= 2) continue;
      if (node.contains(other.node) || other.node.contains(node)) continue;
      if (node.closest(".controls") !== other.node.closest(".controls")) continue; // it sticks to the top
      out.push(`${nameOf(node)} | ${nameOf(other.node)}`);
    }
  });
  return out;
})()"""

# Keeps what a screen reader says: the live regions that change, those that are live by what they are included.
LISTEN = """(() => {
  window.spoken = [];
  const kinds = "[aria-live], [role=status], [role=alert], [role=log], [role=timer], output";
  new MutationObserver((changes) => changes.forEach(({ target }) => {
    const region = (target.nodeType === 1 ? target : target.parentElement)?.closest(kinds);
    if (region && region.ariaLive !== "off") spoken.push([region.id || region.className, region.textContent]);
  })).observe(document.body, { childList: true, characterData: true, subtree: true });
})()"""


def problems(browser: chromium.Chromium, own: str = "") -> list[object]:
    """Errors, warnings, dialogs, and what was fetched besides the page from elsewhere than its `own` server."""
    browser.run("new Promise(requestAnimationFrame)")
    urls = [request["request"]["url"] for request in browser.seen("Network.requestWillBeSent")]
    urls = [url for url in urls[1:] if not own or not url.startswith((own, "data:", "blob:"))]
    errors = [call for call in browser.seen("Runtime.consoleAPICalled") if call["type"] in ("error", "warning")]
    return [
        *browser.seen("Runtime.exceptionThrown"),
        *browser.seen("Log.entryAdded"),
        *browser.seen("Page.javascriptDialogOpening"),
        *errors,
        *urls,
    ]


def screenshot(browser: chromium.Chromium, name: str) -> None:
    """Keeps a picture of the whole page, to be looked at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    browser.screenshot(SCREENSHOTS / f"{name}.png")
