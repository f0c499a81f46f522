// The slider, the buttons and the keys, which move all views; and the part of the address that says the pass.

const WAIT_FOR_ADDRESS = 300; // browsers let a page change its address only so often

/** A button that can do nothing now keeps the focus: who uses the keyboard would lose the place. */
function allow(button, can) {
  button.setAttribute("aria-disabled", String(!can));
}

document.addEventListener("click", (event) => {
  if (event.target.closest?.("[aria-disabled=true]")) event.stopImmediatePropagation();
}, true);

/** `running` says whether more passes may come. Then playing waits for them at the end. */
function control(views, running = () => false) {
  const ids = ["pass", "count", "headline", "previous", "next", "play", "pace", "traces"];
  const [slider, output, difference, previous, next, play, pace, traces] = ids.map((id) => document.getElementById(id));
  let at = 1;
  let on = false;
  let last = 0; // when playing moved on
  let address = null;

  const passes = () => Math.max(0, ...views.map(({ length }) => length));

  function go(pass) {
    const all = passes();
    at = Math.min(Math.max(all, 1), Math.max(1, pass));
    slider.max = Math.max(1, all);
    slider.value = at;
    slider.disabled = all <= 1;
    const text = `pass ${Math.min(at, all)} of ${all}${running() ? " so far" : ""}`;
    setText(output, text);
    slider.setAttribute("aria-valuetext", text);
    allow(previous, at > 1);
    allow(next, at < all);
    allow(play, all > 1 || running());
    // Classes, as :has() would look through the whole page in every pass.
    traces.classList.toggle("four", views.length === 4);
    for (const each of views) each.show(at - 1);
    traces.parentElement.classList.toggle("gives", views.some(({ gives }) => gives));
    for (const each of views) each.settle();
  }

  /** What changes with every pass is not spoken while it plays or runs. */
  function hush() {
    for (const node of [output, difference]) node.setAttribute("aria-live", on || running() ? "off" : "polite");
    for (const each of views) each.live(!on);
  }

  function remember() {
    clearTimeout(address);
    address = setTimeout(() => {
      const rest = location.hash.slice(1).split("&").filter((part) => part && !part.startsWith("pass="));
      history.replaceState(null, "", `#${[`pass=${at}`, ...rest].join("&")}`);
    }, WAIT_FOR_ADDRESS);
  }

  function playing(value) {
    on = value;
    play.textContent = on ? "Pause" : "Play";
    hush();
    if (on) {
      last = performance.now();
      requestAnimationFrame(tick);
    }
  }

  function tick(now) {
    if (!on) return;
    if (now - last >= Number(pace.value)) {
      if (at < passes()) {
        last = now;
        go(at + 1);
        remember();
      } else if (!running()) return playing(false);
    }
    requestAnimationFrame(tick);
  }

  function move(pass) {
    playing(false);
    go(pass);
    remember();
  }

  function fromAddress() {
    const found = /(?:^#|&)pass=(\d{1,7})(?:&|$)/.exec(location.hash);
    return found ? Number(found[1]) : null;
  }

  slider.addEventListener("input", () => move(Number(slider.value)));
  previous.addEventListener("click", () => move(at - 1));
  next.addEventListener("click", () => move(at + 1));
  play.addEventListener("click", () => {
    if (!on && at >= passes() && !running()) go(1);
    playing(!on);
  });
  window.addEventListener("hashchange", () => {
    const pass = fromAddress();
    if (pass !== null && pass !== at) {
      playing(false);
      go(pass);
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    if (event.target.closest?.("input, textarea, select")) return; // they have their own
    const box = event.target.closest?.(".scroll");
    if (box && box.scrollWidth > box.clientWidth) return; // it scrolls
    const pass = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 1, End: passes() }[event.key];
    if (pass === undefined) return;
    event.preventDefault();
    move(pass);
  });
  let width = 0;
  new ResizeObserver(() => {
    if (width !== (width = document.body.clientWidth)) for (const each of views) each.resize();
  }).observe(document.body);

  return {
    go,
    playing,
    hush,
    fromAddress,
    get at() {
      return at;
    },
    /** There are new passes, or new views. */
    grow() {
      go(at);
    },
  };
}
