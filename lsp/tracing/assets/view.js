// One trace on the page: its figures, what happened in the pass that is shown, and the pictures of it.

function view(trace, together) {
  const root = document.getElementById("trace").content.firstElementChild.cloneNode(true);
  const part = Object.fromEntries([...root.querySelectorAll("[data-is]")].map((node) => [node.dataset.is, node]));
  const drawSequence = sequence(part.sequence);
  const drawAnswer = answer(part.answer);
  const plot = chart(part.scroll, part.axis);
  let shown = -1;
  let state = "";
  let all = [];
  let pointed = [];

  part.name.textContent = trace.name;
  part.notes.textContent = [...settingsOf(trace), `max new tokens ${trace.max_new_tokens}`].join(", ");
  const options = Object.entries(trace.options).map(([key, value]) => `${key} = ${JSON.stringify(value)}`);
  part.settings.textContent = [trace.scheduler, "", ...options].join("\n");
  part.measure.textContent = `${trace.measure === "confidence" ? "Confidence" : "Margins"} of the open masks`;
  if (!together) showPrompt(part.prompt, trace);
  part.values.addEventListener("toggle", () => drawTable());
  for (const node of [part.sequence, part.scroll]) node.addEventListener("pointerover", point);
  root.addEventListener("pointerleave", () => highlight(null));

  function point(event) {
    const node = event.target.closest("[data-at]");
    if (node) highlight(Number(node.dataset.at));
  }

  function highlight(at) {
    for (const node of pointed) {
      node.classList.remove("pointed");
      node.querySelector("title")?.remove();
    }
    part.readout.textContent = at === null || !all[at] ? "" : describe(trace, all[at]);
    pointed = at === null ? [] : [...root.querySelectorAll(`[data-at="${at}"]`)];
    for (const node of pointed) {
      node.classList.add("pointed");
      if (node instanceof SVGElement) node.append(svg("title", {}, part.readout.textContent));
    }
  }

  function drawTable() {
    if (!part.values.open || shown < 0) return;
    const rows = all.filter((cell) => cell.rank !== undefined);
    part.values.lastElementChild.replaceChildren(table(trace, rows));
  }

  /** The figures at a pass, if they are known of every pass, else those of the whole. */
  function drawFigures(k) {
    const cost = trace.costs[k];
    const tokens = committedBy(trace, cost ? k : trace.steps.length - 1);
    const passes = cost ? k + 1 : trace.passes;
    part.passes.textContent = passes;
    part.tokens.textContent = tokens;
    part.rate.textContent = (tokens / Math.max(1, passes)).toFixed(1);
    part.positions.textContent = thousands(cost ? cost.positions : trace.positions);
    part.time.hidden = !cost;
    if (cost) part.seconds.textContent = cost.seconds.toFixed(2);
    part.verdict.textContent = (trace.done && VERDICTS[trace.verdict]) || "";
    part.verdict.className = `verdict ${trace.verdict || ""}`;
  }

  function drawCaption() {
    setText(part.caption, captionOf(trace));
  }

  function explain(k, over) {
    if (!trace.steps.length) {
      return trace.stopped ? "Stopped before the first pass." : trace.done ? "No pass was needed." : "Waiting for the first pass.";
    }
    return over && trace.done ? finished(trace) : sentence(trace, k);
  }

  return {
    root,
    trace,
    get length() {
      return trace.steps.length;
    },
    live(on) {
      part.sentence.setAttribute("aria-live", on ? "polite" : "off");
    },
    /** Shows pass k, or the last one there is. */
    show(k) {
      const last = trace.steps.length - 1;
      const over = k > last;
      k = Math.min(k, last);
      const now = `${k} ${over} ${trace.done} ${trace.axisTop} ${trace.done || trace.steps.length} ${trace.stopped}`;
      if (now === state) return;
      state = now;
      setText(part.sentence, explain(k, over));
      drawFigures(k);
      root.classList.toggle("running", !trace.done && !trace.stopped);
      root.classList.toggle("over", over && trace.done);
      drawAnswer(trace, k);
      if (k < 0) return;
      shown = k;
      all = cells(trace, k);
      part.sequence.setAttribute("aria-label", `The sequence after pass ${k + 1}`);
      drawSequence(trace, k, all);
      plot.draw(trace, k, all);
      drawCaption();
      drawTable();
      highlight(null);
    },
    /** After all views are shown: it measures the page. */
    settle() {
      plot.scroll();
    },
    /** Whether the pass has tokens that were given. */
    get gives() {
      return all.some(({ state }) => state === "given");
    },
    resize() {
      if (shown >= 0) plot.draw(trace, shown, all, true);
      plot.scroll();
    },
  };
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

/** What the traces differ in, if they are of one question; while they run, how far they are. */
function showHeadline(traces) {
  const box = document.getElementById("headline");
  const [big, small] = traces.length > 1 && comparable(traces) ? headline(traces) : ["", ""];
  box.hidden = !big;
  setText(box.firstElementChild, big);
  setText(box.lastElementChild, small);
}
