// The margins of a pass as bars, one column for every position, so that a column stays where it is from pass to pass.

const HEIGHT = 164;
const TOP = 30; // room for two rows of marks
const STRIP = 8; // the state of every position, under the bars
const NARROWEST = 6;
const AROUND = 0.75; // how much is drawn on both sides of what can be seen, in widths of the box

function svg(name, attributes, ...children) {
  const out = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) out.setAttribute(key, value);
  out.append(...children);
  return out;
}

function valueOf(trace, cell) {
  return trace.measure === "confidence" ? cell.confidence : cell.margin;
}

/** The top of the axis, one for all passes: most margins fit, and every line does. */
function axisTop(trace) {
  if (trace.measure === "confidence") return 1;
  const all = trace.steps.flatMap((step) => step.margins.filter((margin) => margin !== null)).sort((a, b) => a - b);
  const most = all.length ? all[Math.floor(0.8 * (all.length - 1))] : 1;
  const lines = [trace.level, trace.islands].filter((value) => value !== null && value < 1e300);
  if (!lines.length) return nice(Math.max(1e-3, most));
  return nice(Math.max(1e-3, 2 * Math.max(...lines), Math.min(most, 5 * lines[0])));
}

function nice(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return unit * [1, 2, 3, 4, 5, 6, 8, 10].find((factor) => factor * unit >= value * 0.999);
}

/** The horizontal lines of a pass: label and value. */
function levels(trace, step) {
  const out = [];
  const level = step.rule ? step.rule.tau : trace.level;
  const name = trace.measure === "confidence" ? "p" : trace.level === null ? "τ" : "floor";
  const add = (kind, label, value, under) => out.push({ kind, label: `${label} ${number(value)}`, value, under });
  if (level !== null) add("level", name, level, trace.islands !== null && trace.islands >= level);
  if (trace.islands !== null) add("islands", "islands", trace.islands, false);
  return out.filter(({ value }) => value < 1e300);
}

/** Draws into a box that scrolls, with an axis beside it, whatever pass it is told. `scroll` has to follow. */
function chart(box, axis) {
  const plot = box.parentElement;
  const out = svg("svg", { role: "img" });
  const above = svg("g", {});
  let frame = null;
  let columns = []; // by offset
  let labels = []; // of the lines
  let named = ""; // what the labels say, and where
  let shown = []; // what the columns are drawn of
  let open = -1; // the first open mask
  let wanted = null; // where the box has to be scrolled to

  /** A new frame if the room or the axis is another one: then everything is drawn anew. */
  function fit(trace, length, anew) {
    const width = frame && !anew ? frame.width : box.clientWidth;
    if (frame && frame.width === width && frame.length === length && frame.top === trace.axisTop) return;
    const base = HEIGHT - STRIP - 2;
    const column = Math.max(NARROWEST, width / Math.max(1, length));
    const y = (value) => base - (base - TOP) * Math.min(1, Math.max(0, value) / frame.top);
    open = -1;
    frame = { left: 0, width, length, top: trace.axisTop, base, column, gap: column > 9 ? 2 : 1, y };
    out.setAttribute("width", Math.round(column * length));
    out.setAttribute("height", HEIGHT);
    columns = [];
    out.replaceChildren(above);
    box.replaceChildren(out);
    const ticks = [0, 0.5, 1].map((share) => place(make("span", "tick", number(share * frame.top)), y(share * frame.top)));
    axis.replaceChildren(...ticks);
  }

  /** Draws the columns that can be seen, and some around them: thousands would take longer than a frame. */
  function drawColumns(trace, left) {
    const begin = Math.max(0, Math.floor((left - AROUND * frame.width) / frame.column));
    const end = Math.min(shown.length, Math.ceil((left + (1 + AROUND) * frame.width) / frame.column));
    columns.forEach((column, at) => {
      if (at >= begin && at < end) return;
      column.group.remove();
      delete columns[at];
    });
    for (let at = begin; at < end; at += 1) {
      if (columns[at]) update(columns[at], trace, shown[at], frame);
      else above.before((columns[at] = newColumn(trace, shown[at], frame)).group);
    }
  }

  function drawLabels(lines) {
    const now = JSON.stringify([lines, frame.top]);
    if (now === named) return;
    named = now;
    for (const label of labels) label.remove();
    labels = lines.map(({ kind, label, value, under }) =>
      place(make("span", `label ${kind}${under ? " under" : ""}`, label), frame.y(value)));
    plot.append(...labels);
  }

  let last = null;
  box.addEventListener("scroll", () => {
    if (frame && last) drawColumns(last, (frame.left = box.scrollLeft));
  });

  function draw(trace, k, all, anew = false) {
    const step = trace.steps[k];
    fit(trace, all.length, anew);
    out.setAttribute("aria-label", summary(trace, step));
    [shown, last] = [all, trace];
    const first = all.findIndex((cell) => cell.rank !== undefined);
    if (frame.column * frame.length > frame.width + 1 && first !== open) {
      const most = Math.round(frame.column * frame.length) - frame.width;
      wanted = frame.left = Math.min(most, Math.max(0, Math.round(((open = first) - 2) * frame.column)));
    }
    drawColumns(trace, frame.left);
    above.replaceChildren(...overlay(trace, step, frame));
    drawLabels(levels(trace, step));
  }

  /** Shows the first open mask. It makes the browser lay out the page, so it waits until all of the page is written. */
  function scroll() {
    if (wanted !== null) box.scrollLeft = wanted;
    wanted = null;
  }

  return { draw, scroll };
}

function place(node, y) {
  node.style.top = `${y}px`;
  return node;
}

function newColumn(trace, cell, frame) {
  const x = cell.at * frame.column;
  const group = svg("g", { "data-at": cell.at });
  const strip = svg("rect", { x, y: frame.base + 3, width: frame.column - frame.gap, height: STRIP - 2 });
  group.append(strip);
  const column = { group, strip, x, bars: [] };
  update(column, trace, cell, frame);
  return column;
}

/** Changes what is another than before. */
function update(column, trace, cell, frame) {
  if (column.cell && alike(column.cell, cell)) return;
  column.cell = cell;
  if (column.state !== cell.state) column.strip.setAttribute("class", `strip ${(column.state = cell.state)}`);
  const value = cell.rank === undefined ? null : valueOf(trace, cell);
  const kind = `bar ${cell.state}${cell.allowed ? "" : " later"}`;
  const drawn = column.bars.length > 0 && value !== null;
  if (column.value !== value) {
    column.value = value;
    if (drawn) stretch(column.bars[1], frame, value);
    else replaceBars(column, value === null ? [] : bar(frame, column.x, value, kind));
    point(column, frame, value, kind);
  }
  if (column.kind === kind) return;
  column.kind = kind;
  for (const part of column.bars.slice(1)) part.setAttribute("class", kind);
}

function replaceBars(column, bars) {
  for (const part of column.bars) part.remove();
  column.bars = bars;
  column.group.prepend(...bars);
}

/** What can be pointed at, and the bar. */
function bar(frame, x, value, kind) {
  const width = frame.column - frame.gap;
  const whole = svg("rect", { class: "column", x, y: 0, width: frame.column, height: HEIGHT });
  return [whole, stretch(svg("rect", { class: kind, x, width }), frame, value)];
}

function stretch(rect, frame, value) {
  const top = frame.y(value);
  rect.setAttribute("y", top);
  rect.setAttribute("height", Math.max(1, frame.base - top));
  return rect;
}

/** A point on the bar where the axis cuts it off. */
function point(column, frame, value, kind) {
  const [, drawn, peak] = column.bars;
  const cut = value !== null && value > frame.top;
  if (cut === Boolean(peak)) return;
  if (!cut) return column.bars.pop().remove();
  const half = (frame.column - frame.gap) / 2;
  column.bars.push(svg("path", { class: kind, d: `M${column.x} ${frame.y(value)}l${half} -5l${half} 5z` }));
  drawn.after(column.bars[2]);
}

/** What is drawn over the bars: the lines of the pass and the marks of the rule. */
function overlay(trace, step, { y, column, base, length }) {
  const out = [svg("line", { class: "base", x1: 0, x2: column * length, y1: base, y2: base })];
  if (step.rule) out.push(minimum(trace, step, y, column));
  for (const { kind, value } of levels(trace, step)) {
    out.push(svg("line", { class: `line ${kind}`, x1: 0, x2: column * length, y1: y(value), y2: y(value) }));
  }
  return [...out, ...flags(marks(trace, step), column, base, length)];
}

function minimum(trace, step, y, column) {
  let [path, last, end] = ["", null, 0];
  step.rule.prefix_min.forEach((value, j) => {
    const begin = (step.masks[j] - trace.prompt.length) * column;
    const level = y(value === null ? Infinity : value);
    if (level !== last) path += `${j ? `H${end}L` : "M"}${begin} ${level}`;
    [last, end] = [level, begin + column];
  });
  return svg("path", { class: "minimum", d: path && `${path}H${end}` });
}

/** Vertical marks; a label that would run into the one before it goes a row further down. */
function flags(found, column, base, columns) {
  const ends = [-Infinity, -Infinity];
  const lines = [];
  const labels = [];
  for (const [at, names] of [...found].sort(([a], [b]) => a - b)) {
    const text = names.join(" = ");
    const x = (at + 1) * column - 0.5;
    const width = 8 + 7 * text.length;
    const left = x + width > column * columns;
    const begin = left ? x - width : x;
    const row = begin < ends[0] ? 1 : 0;
    ends[row] = begin + width;
    const label = svg("text", { class: "mark", x: left ? x - 4 : x + 4, y: 10 + 13 * row });
    label.setAttribute("text-anchor", left ? "end" : "start");
    label.textContent = text;
    labels.push(label);
    lines.push(svg("line", { class: "mark", x1: x, x2: x, y1: 1 + 13 * row, y2: base }));
  }
  return [...lines, ...labels];
}

function summary(trace, step) {
  const known = step.confidence.map((value) => value !== null);
  const given = (trace.measure === "confidence" ? step.confidence : step.margins).filter((_, j) => known[j]);
  const values = given.map((value) => (value === null ? Infinity : value));
  const lines = levels(trace, step).map(({ label }) => label);
  const range = values.length ? `from ${number(Math.min(...values))} to ${number(Math.max(...values))}` : "no numbers";
  return [`${trace.measure} of ${count(known.length, "mask")}, ${range}`, ...lines].join("; ");
}
