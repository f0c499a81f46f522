// The page: one view per trace, and the controls that move all of them.

function view(trace, together) {
  const root = document.getElementById("trace").content.firstElementChild.cloneNode(true);
  const part = Object.fromEntries([...root.querySelectorAll("[data-is]")].map((node) => [node.dataset.is, node]));
  const last = trace.steps.length - 1;
  const caption = captionOf(trace);
  let ended = false;
  let shown = -1;
  let all = [];

  part.name.textContent = trace.name;
  part.notes.textContent = trace.notes.join(", ");
  part.passes.textContent = trace.passes;
  const committed = trace.committed_in.filter((pass) => pass >= 0).length;
  part.tokens.textContent = committed;
  part.positions.textContent = trace.positions;
  part.rate.textContent = (committed / Math.max(1, trace.passes)).toFixed(1);
  const options = Object.entries(trace.options).map(([key, value]) => `${key} = ${JSON.stringify(value)}`);
  part.settings.textContent = [trace.scheduler, "", ...options].join("\n");
  part.measure.textContent = `${trace.measure === "confidence" ? "Confidence" : "Margins"} of the open masks`;
  if (!together) showPrompt(part.prompt, trace);
  drawAnswer(part.answer, trace);
  part.values.addEventListener("toggle", () => drawTable());
  for (const node of [part.sequence, part.scroll]) node.addEventListener("pointerover", point);
  root.addEventListener("pointerleave", () => highlight(null));

  function point(event) {
    const node = event.target.closest("[data-at]");
    if (node) highlight(Number(node.dataset.at));
  }

  function highlight(at) {
    for (const node of root.querySelectorAll(".pointed")) node.classList.remove("pointed");
    part.readout.textContent = at === null || !all[at] ? caption : describe(trace, all[at]);
    if (at === null) return;
    for (const node of root.querySelectorAll(`[data-at="${at}"]`)) node.classList.add("pointed");
  }

  function drawTable() {
    if (!part.values.open || shown < 0) return;
    const rows = all.filter((cell) => cell.rank !== undefined);
    part.values.lastElementChild.replaceChildren(table(trace, rows));
  }

  function drawPlot() {
    const drawn = drawChart(trace, shown, all, part.scroll.clientWidth);
    part.scroll.replaceChildren(drawn.out);
    const ticks = [0, 0.5, 1].map((share) => share * trace.axisTop);
    const labels = ticks.map((value) => place(make("span", "tick", number(value)), drawn.y(value)));
    part.axis.replaceChildren(...labels);
    const plot = part.scroll.parentElement;
    plot.replaceChildren(part.scroll, ...levels(trace, trace.steps[shown]).map(({ kind, label, value, under }) =>
      place(make("span", `label ${kind}${under ? " under" : ""}`, label), drawn.y(value))));
    const open = all.findIndex((cell) => cell.rank !== undefined);
    part.scroll.scrollLeft = Math.max(0, (open - 2) * drawn.column);
  }

  return {
    root,
    length: trace.steps.length,
    live(on) {
      part.sentence.setAttribute("aria-live", on ? "polite" : "off");
    },
    show(k) {
      const over = k > last;
      k = Math.min(k, last);
      if (k === shown && over === ended) return;
      ended = over;
      part.sentence.textContent = last < 0 ? "No pass was needed." : over ? finished(trace) : sentence(trace, k);
      if (k === shown) return;
      shown = k;
      all = cells(trace, k);
      part.sequence.setAttribute("aria-label", `The sequence after pass ${k + 1}`);
      drawSequence(part.sequence, trace, k, all);
      drawPlot();
      drawTable();
      highlight(null);
      for (const node of part.answer.querySelectorAll("[data-pass]")) {
        node.classList.toggle("current", Number(node.dataset.pass) === k);
      }
    },
    resize() {
      if (shown >= 0) drawPlot();
    },
  };
}

function make(name, kind, text) {
  const out = document.createElement(name);
  if (kind) out.className = kind;
  if (text !== undefined) out.textContent = text;
  return out;
}

function place(node, y) {
  node.style.top = `${y}px`;
  return node;
}

/** The text of a token, with marks for spaces and line ends that are not part of it. */
function fill(chip, text) {
  for (const part of text.split(/(\n| +)/)) {
    if (part === "\n") chip.append(make("span", "newline", "\n"));
    else if (part.startsWith(" ")) chip.append(...[...part].map(() => make("span", "space", " ")));
    else if (part) chip.append(part);
  }
  return chip;
}

function drawSequence(node, trace, k, all) {
  const flags = marks(trace, trace.steps[k]);
  const out = [];
  for (let i = 0; i < all.length; i += 1) {
    const cell = all[i];
    const end = sameFrom(trace, all, i, flags);
    const many = end - i;
    const chip = make("span", `chip ${cell.state}`);
    chip.dataset.at = cell.at;
    chip.title = describe(trace, cell);
    if (cell.state === "dropped") chip.textContent = `${count(many, "position")} dropped`;
    else if (many > 3) fill(chip, `${pieceOf(trace, cell.token)}×${many}`);
    else fill(chip, pieceOf(trace, cell.token));
    if (isStop(trace, cell.token)) chip.classList.add("stop");
    out.push(make("wbr"), chip);
    if (many > 3 || cell.state === "dropped") i = end - 1;
    if (flags.has(i)) out.push(make("span", "mark", flags.get(i).join(" = ")));
  }
  node.replaceChildren(...out);
}

/** Where a run of dropped positions, or of masks that all predict a stop, ends; a mark ends it too. */
function sameFrom(trace, all, begin, flags) {
  const { state, token } = all[begin];
  const open = (state === "masked" || state === "cut") && (token === null || isStop(trace, token));
  const same = (cell) => cell.state === state && (!open || (cell.token === token && !flags.has(cell.at - 1)));
  let end = begin + 1;
  if (open || state === "dropped") while (end < all.length && same(all[end])) end += 1;
  return end;
}

function drawAnswer(node, trace) {
  const passes = Math.max(1, trace.passes - 1);
  trace.tokens.forEach((token, at) => {
    const pass = trace.passOf[at];
    node.append(make("wbr"));
    if (pass < 0) {
      const given = fill(make("span", "chip given"), pieceOf(trace, token));
      given.title = "given";
      node.append(given);
      return;
    }
    if (pass !== trace.passOf[at - 1]) node.append(make("sup", "", String(pass + 1)));
    const chip = fill(make("span", "chip by-pass"), pieceOf(trace, token));
    chip.style.setProperty("--late", `${Math.round((100 * pass) / passes)}%`);
    chip.dataset.pass = pass;
    chip.title = `committed in pass ${pass + 1}`;
    node.append(chip);
  });
}

function table(trace, rows) {
  const out = make("table");
  const head = out.createTHead().insertRow();
  for (const name of ["position", "token", "margin", "probability", "state"]) {
    const cell = make("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const body = out.createTBody();
  for (const cell of rows) {
    const row = body.insertRow();
    const values = cell.unknown ? ["–", "–"] : [number(cell.margin), probability(cell.confidence)];
    for (const text of [cell.at + 1, textOf(trace, [cell.token]), ...values, STATES[cell.state]]) {
      row.insertCell().textContent = text;
    }
  }
  return out;
}

function showPrompt(section, trace) {
  section.querySelector("pre").textContent = trace.prompt.map((token) => pieceOf(trace, token)).join("");
  section.hidden = false;
}

function start() {
  const traces = JSON.parse(document.getElementById("data").textContent);
  const together = traces.every(({ prompt }) => String(prompt) === String(traces[0].prompt));
  for (const trace of traces) {
    trace.steps = expand(trace.steps);
    replay(trace);
    trace.axisTop = axisTop(trace);
  }
  if (together) showPrompt(document.getElementById("prompt"), traces[0]);
  const views = traces.map((trace) => view(trace, together));
  document.getElementById("traces").append(...views.map(({ root }) => root));
  control(views, Math.max(...views.map(({ length }) => length)));
}

function control(views, passes) {
  const ids = ["pass", "count", "previous", "next", "play"];
  const [slider, output, previous, next, play] = ids.map((id) => document.getElementById(id));
  let timer = null;

  function go(pass) {
    slider.value = Math.min(passes, Math.max(1, pass));
    const at = Number(slider.value);
    const text = `pass ${Math.min(at, passes)} of ${passes}`;
    output.textContent = text;
    slider.setAttribute("aria-valuetext", text);
    previous.disabled = at <= 1;
    next.disabled = at >= passes;
    for (const each of views) each.show(at - 1);
  }

  function playing(on) {
    clearInterval(timer);
    timer = on ? setInterval(advance, 900) : null;
    play.textContent = on ? "Pause" : "Play";
    for (const each of views) each.live(!on);
  }

  function advance() {
    if (Number(slider.value) < passes) go(Number(slider.value) + 1);
    else playing(false);
  }

  function move(pass) {
    playing(false);
    go(pass);
  }

  slider.max = Math.max(1, passes);
  slider.disabled = play.disabled = passes <= 1;
  slider.addEventListener("input", () => move(Number(slider.value)));
  previous.addEventListener("click", () => move(Number(slider.value) - 1));
  next.addEventListener("click", () => move(Number(slider.value) + 1));
  play.addEventListener("click", () => {
    const on = timer === null;
    if (on && Number(slider.value) >= passes) go(1);
    playing(on);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target === slider || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    const box = event.target.closest?.(".scroll");
    if (box && box.scrollWidth > box.clientWidth) return; // it scrolls
    const here = Number(slider.value);
    const pass = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 1, End: passes }[event.key];
    if (pass === undefined) return;
    event.preventDefault();
    move(pass);
  });
  let width = 0;
  new ResizeObserver(() => {
    if (width !== (width = document.body.clientWidth)) for (const each of views) each.resize();
  }).observe(document.body);
  go(1);
}

start();
