// The margins of a pass as bars, one column for every position, so that a column stays where it is from pass to pass.

const HEIGHT = 164;
const TOP = 30; // room for two rows of marks
const STRIP = 8; // the state of every position, under the bars
const NARROWEST = 6;

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

function drawChart(trace, k, all, width) {
  const step = trace.steps[k];
  const column = Math.max(NARROWEST, width / Math.max(1, all.length));
  const base = HEIGHT - STRIP - 2;
  const y = (value) => base - (base - TOP) * Math.min(1, Math.max(0, value) / trace.axisTop);
  const out = svg("svg", { width: Math.round(column * all.length), height: HEIGHT, role: "img" });
  out.setAttribute("aria-label", summary(trace, step));
  const gap = column > 9 ? 2 : 1;
  for (const cell of all) {
    const x = cell.at * column;
    const group = svg("g", { "data-at": cell.at });
    if (cell.rank !== undefined) {
      group.append(svg("rect", { class: "column", x, y: 0, width: column, height: HEIGHT }));
      group.append(...bar(trace, cell, x, y, column - gap, base));
    }
    group.append(svg("rect", { class: `strip ${cell.state}`, x, y: base + 3, width: column - gap, height: STRIP - 2 }));
    const title = svg("title", {});
    title.textContent = describe(trace, cell);
    group.append(title);
    out.append(group);
  }
  out.append(svg("line", { class: "base", x1: 0, x2: column * all.length, y1: base, y2: base }));
  if (step.rule) out.append(minimum(trace, step, y, column));
  for (const { kind, value } of levels(trace, step)) {
    out.append(svg("line", { class: `line ${kind}`, x1: 0, x2: column * all.length, y1: y(value), y2: y(value) }));
  }
  out.append(...flags(marks(trace, step), column, base, all.length));
  return { out, y, column };
}

function bar(trace, cell, x, y, width, base) {
  const value = valueOf(trace, cell);
  const top = y(value);
  const kind = `bar ${cell.state}${cell.allowed ? "" : " later"}`;
  const parts = [svg("rect", { class: kind, x, y: top, width, height: Math.max(1, base - top) })];
  if (value > trace.axisTop) {
    // cut off by the axis: a pointed end
    parts.push(svg("path", { class: kind, d: `M${x} ${top}l${width / 2} -5l${width / 2} 5z` }));
  }
  return parts;
}

function minimum(trace, step, y, column) {
  const path = step.rule.prefix_min.map((value, j) => {
    const begin = (step.masks[j] - trace.prompt.length) * column;
    const level = y(value === null ? Infinity : value);
    return `${j ? "L" : "M"}${begin} ${level}H${begin + column}`;
  });
  return svg("path", { class: "minimum", d: path.join("") });
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
