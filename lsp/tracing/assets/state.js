// What every position of a trace is in every pass. Offsets count from the first mask: the prompt of a trace ends there.

/** Makes a trace of its head and the lines of its passes. */
function replay(head, lines) {
  const given = head.committed_in.flatMap((pass, at) => (pass < 0 ? [[at, head.tokens[at]]] : []));
  const trace = begin({ ...head, given });
  for (const line of lines) advance(trace, line);
  return finish(trace, head);
}

/** A trace without passes. It gets `passOf` and `tokenOf` of every offset, and `ends`, where the sequence ends before
 * every pass.
 *
 * A token that was given has the pass -1. A stop drops nothing before the last of these. */
function begin(head) {
  const size = head.max_new_tokens;
  const trace = { ...head, head, steps: [], lines: [], costs: [], read: reader(), tail: 0, done: false };
  trace.passOf = new Array(size).fill(Infinity);
  trace.tokenOf = new Array(size).fill(null);
  trace.ends = [size];
  for (const [at, token] of head.given) {
    trace.passOf[at] = -1;
    trace.tokenOf[at] = token;
    trace.tail = Math.max(trace.tail, at + 1);
  }
  trace.axisTop = axisTop(trace);
  return trace;
}

/** Adds the line of the next pass. */
function advance(trace, line) {
  const step = trace.read(line);
  const k = trace.steps.length;
  let end = trace.ends[k];
  step.chosen.forEach((position, i) => {
    const at = position - trace.prompt.length;
    trace.passOf[at] = k;
    trace.tokenOf[at] = step.written[i];
    if (isStop(trace, step.written[i])) end = Math.min(end, Math.max(at + 1, trace.tail));
  });
  trace.ends.push(end);
  trace.lines.push(line);
  trace.steps.push(step);
  if (Number.isInteger(Math.log2(k + 1))) trace.axisTop = axisTop(trace); // now and then: it looks at all passes
}

/** The whole head is known now. A run that was stopped before its end has masks left. */
function finish(trace, head) {
  Object.assign(trace, head, { head, done: true });
  const last = trace.steps.length;
  trace.stopped = trace.committed_in.some((pass) => pass >= trace.passes);
  if (last) trace.ends[last] = Math.min(trace.ends[last], trace.tokens.length);
  trace.axisTop = axisTop(trace);
  return trace;
}

/** How many masks the last pass has left. */
function openAtEnd(trace) {
  return trace.passOf.slice(0, trace.ends[trace.steps.length]).filter((pass) => pass === Infinity).length;
}

/** How many tokens are committed after pass k, without those that a stop has dropped. */
function committedBy(trace, k) {
  return trace.passOf.filter((pass, at) => pass >= 0 && pass <= k && at < trace.ends[k + 1]).length;
}

function isStop(trace, token) {
  return trace.options.stop_early !== false && trace.stops.includes(token);
}

function isDelimiter(trace, token) {
  return trace.delimiters.includes(token);
}

/** Whether the first margin is under the floor, and something else than the first mask was committed. */
function leftThePrefix(trace, step) {
  const first = step.margins[0];
  return trace.level !== null && first !== null && first < trace.level && !step.chosen.includes(step.masks[0]);
}

/** All offsets in pass k: state, token, and for the masks of the pass margin, confidence and rank among them. */
function cells(trace, k) {
  const step = trace.steps[k];
  const first = trace.prompt.length;
  const rank = new Map(step.masks_in_pass.map((position, j) => [position - first, j]));
  const candidate = step.rule && !leftThePrefix(trace, step) ? step.rule.candidate : 0;
  return trace.passOf.map((pass, at) => {
    const j = rank.get(at);
    const cell = { at, rank: j, token: pass <= k ? trace.tokenOf[at] : j === undefined ? null : step.tokens[j] };
    if (j !== undefined) {
      cell.unknown = step.confidence[j] === null; // the model gave no number
      cell.margin = cell.unknown ? 0 : step.margins[j] === null ? Infinity : step.margins[j];
      cell.confidence = cell.unknown ? 0 : step.confidence[j];
      cell.allowed = j < step.masks.length;
    }
    if (at >= trace.ends[k + 1]) cell.state = "dropped";
    else if (pass < k) cell.state = first + at < step.frozen ? "frozen" : pass < 0 ? "given" : "front";
    else if (pass === k) cell.state = "now";
    else if (j < candidate) cell.state = "cut";
    else cell.state = "masked";
    return cell;
  });
}

/** Whether two cells are shown as the same. */
function alike(one, other) {
  return one.state === other.state && one.token === other.token && one.margin === other.margin
    && one.confidence === other.confidence && one.allowed === other.allowed && one.rank === undefined === (other.rank === undefined);
}

/** The ends of lengths that are worth a mark, by the offset of the last position that they hold. */
function marks(trace, step) {
  const out = new Map();
  const { rule } = step;
  if (!rule || leftThePrefix(trace, step)) return out;
  const add = (label, length) => {
    const at = step.masks[length - 1] - trace.prompt.length;
    out.set(at, [...(out.get(at) || []), label]);
  };
  if (trace.level === null) add("lo", rule.lo);
  if (trace.level === null || rule.hi < rule.n) add("hi", rule.hi);
  add("L′", rule.candidate);
  if (rule.snap !== null) add("snap", rule.snap);
  return out;
}

/** Offsets in runs without a gap. */
function runs(offsets) {
  const out = [];
  for (const at of offsets) {
    if (out.length && out[out.length - 1][1] === at) out[out.length - 1][1] = at + 1;
    else out.push([at, at + 1]);
  }
  return out;
}
