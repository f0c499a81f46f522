"""What is asked of every page: that nothing failed, and that all text can be read."""

from __future__ import annotations

from tests.browser import chromium

# The contrast of every text with what is behind it; a canvas turns any colour into red, green and blue.
CONTRASTS = """(() => {
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
  const out = {};
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.getClientRects().length || node.disabled || node instanceof SVGElement) continue;
    const behind = [];
    for (let at = node; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
    const pair = [light([...behind, getComputedStyle(node).color]), light(behind)].sort((a, b) => b - a);
    const name = `${node.tagName} ${node.className}`;
    out[name] = Math.min(out[name] ?? Infinity, (pair[0] + 0.05) / (pair[1] + 0.05));
  }
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
