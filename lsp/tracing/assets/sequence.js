// The sequence as chips, token by token, and the answer with the pass of each token. Both change what has changed only.

function make(name, kind, text) {
  const out = document.createElement(name);
  if (kind) out.className = kind;
  if (text !== undefined) out.textContent = text;
  return out;
}

/** Changes a text only if it is another one: a screen reader would say it again. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The text of a token, with marks for spaces and line ends that are not part of it. */
function fill(chip, text) {
  chip.replaceChildren();
  for (const part of text.split(/(\n| +)/)) {
    if (part === "\n") chip.append(make("span", "newline", "\n"));
    else if (part.startsWith(" ")) chip.append(...[...part].map(() => make("span", "space", " ")));
    else if (part) chip.append(part);
  }
  return chip;
}

const CHUNK = 64;
const LONG = 256;

/** The part of a node that an offset belongs to. A long text has parts, so that what cannot be seen is not laid out. */
function parts(node) {
  const chunks = [];
  return (trace, at) => {
    if (trace.max_new_tokens <= LONG) return node;
    for (let i = chunks.length; i <= at / CHUNK; i += 1) node.append((chunks[i] = make("div", "chunk")));
    return chunks[Math.floor(at / CHUNK)];
  };
}

/** Draws into a node whatever pass it is told. */
function sequence(node) {
  const partOf = parts(node);
  let shown = new Map(); // from the offset of a chip to what is drawn there
  return (trace, k, all) => {
    const flags = marks(trace, trace.steps[k]);
    const found = new Map();
    let [before, part, moved] = [null, null, false];
    for (let i = 0; i < all.length; i += 1) {
      const { at } = all[i];
      const end = sameFrom(trace, all, i, flags);
      const many = end - i;
      const last = many > 3 || all[i].state === "dropped" ? end - 1 : i;
      if (part !== (part = partOf(trace, at))) before = null;
      const one = chipOf(trace, all[i], many, flags.get(last), shown.get(at));
      shown.delete(at);
      const stays = !moved && one.before === before && one.part === part; // else the page is asked, which takes longer
      moved = !stays && (one.nodes[0].previousSibling !== before || one.nodes[0].parentNode !== part);
      if (moved && before) before.after(...one.nodes);
      else if (moved) part.prepend(...one.nodes);
      Object.assign(one, { before, part });
      before = one.nodes[one.nodes.length - 1];
      found.set(at, one);
      i = last;
    }
    for (const { nodes } of shown.values()) for (const each of nodes) each.remove();
    shown = found;
  };
}

/** A chip with the place before it where a line may break, and the mark behind it, if there is one. */
function chipOf(trace, cell, many, mark, old) {
  const label = mark ? mark.join(" = ") : null;
  if (old && old.label === label && old.many === many && alike(old.cell, cell)) return old;
  const text = textOfChip(trace, cell, many);
  const end = isStop(trace, cell.token) ? " stop" : isDelimiter(trace, cell.token) ? " delimiter" : "";
  const kind = `chip ${cell.state}${cell.state === "dropped" ? "" : end}`;
  const title = describe(trace, cell);
  if (old && old.label === label) {
    const chip = old.nodes[1];
    if (old.kind !== kind) chip.className = kind;
    if (old.text !== text) fill(chip, text);
    chip.title = title;
    return Object.assign(old, { cell, many, kind, text });
  }
  if (old) for (const each of old.nodes) each.remove();
  const chip = fill(make("span", kind), text);
  chip.dataset.at = cell.at;
  chip.title = title;
  const nodes = [make("wbr"), chip];
  if (label !== null) nodes.push(make("span", "mark", label));
  return { nodes, cell, many, kind, text, label };
}

function textOfChip(trace, cell, many) {
  if (cell.state === "dropped") return `${count(many, "position")} dropped`;
  return many > 3 ? `${textOf(trace, [cell.token])}×${many}` : pieceOf(trace, cell.token);
}

/** Where a run of dropped positions, or of masks that all predict a stop or a line end, ends; a mark ends it too. */
function sameFrom(trace, all, begin, flags) {
  const { state, token } = all[begin];
  const open = (state === "masked" || state === "cut") && (token === null || isStop(trace, token) || pieceOf(trace, token) === "\n");
  const same = (cell) => cell.state === state && (!open || (cell.token === token && !flags.has(cell.at - 1)));
  let end = begin + 1;
  if (open || state === "dropped") while (end < all.length && same(all[end])) end += 1;
  return end;
}

/** Draws the answer up to a pass: what is known of it while it runs, all of it in the end. */
function answer(node) {
  const partOf = parts(node);
  let shown = [];
  let marked = [];
  let drawn = "";

  function drawChips(trace) {
    const now = `${trace.steps.length} ${trace.done} ${trace.stopped}`;
    if (now === drawn) return;
    drawn = now;
    const known = trace.done && !trace.stopped ? trace.tokens.length : lastCommitted(trace) + 1;
    const passes = Math.max(1, trace.steps.length - 1);
    for (let at = 0; at < known; at += 1) {
      const pass = trace.passOf[at];
      const late = pass < 0 || pass === Infinity ? "" : `${Math.round((100 * pass) / passes)}%`;
      const number = pass >= 0 && pass !== Infinity && pass !== trace.passOf[at - 1] ? String(pass + 1) : "";
      shown[at] = answerChip(trace, at, pass, late, number, shown[at]);
      if (!shown[at].nodes[0].parentNode) partOf(trace, at).append(...shown[at].nodes);
    }
    for (const { nodes } of shown.splice(known)) for (const each of nodes) each.remove();
  }

  return (trace, k) => {
    drawChips(trace);
    for (const chip of marked) chip.classList.remove("current");
    marked = (trace.steps[k]?.chosen || []).map((position) => shown[position - trace.prompt.length]?.nodes[2]);
    marked = marked.filter(Boolean);
    for (const chip of marked) chip.classList.add("current");
  };
}

function answerChip(trace, at, pass, late, number, old) {
  const text = pass === Infinity ? "□" : pieceOf(trace, trace.tokenOf[at]);
  const kind = pass === Infinity ? "chip masked" : pass < 0 ? "chip given" : "chip by-pass";
  const one = old || { nodes: [make("wbr"), make("sup"), make("span")] };
  const [, sup, chip] = one.nodes;
  if (one.number !== number) {
    sup.textContent = one.number = number;
    sup.hidden = !number;
  }
  if (one.text !== text) fill(chip, (one.text = text));
  if (one.kind !== kind || one.pass !== pass) {
    chip.className = one.kind = kind;
    one.pass = pass;
    chip.title = pass < 0 ? "given" : pass === Infinity ? "mask" : `committed in pass ${pass + 1}`;
  }
  if (one.late !== late) chip.style.setProperty("--late", (one.late = late));
  return one;
}

function lastCommitted(trace) {
  let at = trace.ends[trace.steps.length] - 1;
  while (at >= 0 && trace.passOf[at] === Infinity) at -= 1;
  return at;
}
