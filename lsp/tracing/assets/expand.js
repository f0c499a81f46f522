// The passes of a trace as they were: the page holds them without what can be worked out (lsp/tracing/compact.py).

function positionsOf(ranges) {
  const out = [];
  for (let i = 0; i < ranges.length; i += 2) {
    for (let position = ranges[i]; position < ranges[i + 1]; position += 1) out.push(position);
  }
  return out;
}

/** The masks of a pass that says none: those of the pass before that are left, and new ones behind. */
function following(before, end) {
  const taken = new Set(before.chosen);
  const out = before.masks_in_pass.filter((position) => !taken.has(position) && position < end);
  for (let position = before.end; position < end; position += 1) out.push(position);
  return out;
}

function runningMinimum(margins, n) {
  let lowest = Infinity;
  return margins.slice(0, n).map((margin) => {
    lowest = Math.min(lowest, margin === null ? Infinity : margin);
    return lowest === Infinity ? null : lowest;
  });
}

/** A function from the line of a pass to the pass; it is called with one line after the other. */
function reader() {
  const known = { tokens: new Map(), margins: new Map(), confidence: new Map() };
  let before = null;
  return (line) => {
    const step = { ...line };
    step.masks_in_pass = line.masks_in_pass ? positionsOf(line.masks_in_pass) : following(before, line.end);
    step.masks = Array.isArray(line.masks) ? positionsOf(line.masks) : step.masks_in_pass.slice(0, line.masks);
    step.chosen = positionsOf(line.chosen);
    for (const [name, values] of Object.entries(known)) {
      const [ranges, fresh] = line[name] || [[], []];
      positionsOf(ranges).forEach((position, i) => values.set(position, fresh[i]));
      step[name] = step.masks_in_pass.map((position) => values.get(position));
    }
    if (line.rule && !Array.isArray(line.rule.prefix_min)) {
      step.rule = { ...line.rule, prefix_min: runningMinimum(step.margins, line.rule.prefix_min) };
    }
    before = step;
    return step;
  };
}
