// What happened in a pass, in words. Why, says the scheduler: it wrote the reason into the trace.

const STATES = {
  frozen: "in the cache",
  front: "committed, not in the cache yet",
  given: "given, not in the cache",
  now: "committed in this pass",
  cut: "candidate, cut off",
  masked: "mask",
  dropped: "dropped after a stop",
};

function number(value) {
  if (value === null || value > 1e300) return "∞";
  if (Number.isInteger(value)) return String(value);
  return value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : String(Number(value.toPrecision(2)));
}

function probability(value) {
  return value > 0.999 && value < 1 ? "> 0.999" : value.toFixed(3);
}

const VERDICTS = { right: "✓ right", wrong: "✗ wrong" };

function thousands(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** Whether the ids before the first mask are the same. */
function ofOnePrompt(traces) {
  return new Set(traces.map(({ prompt }) => String(prompt))).size === 1;
}

/** Whether traces answer one question: also the tokens between and after the masks are the same, and how many these are. */
function comparable(traces) {
  const asked = ({ prompt, given, max_new_tokens }) => JSON.stringify([prompt, given, max_new_tokens]);
  return new Set(traces.map(asked)).size === 1;
}

/** The difference between traces of one question, in one line: the fewest positions and the most. Below it what is compared,
 * of more than two every one, a line each. */
function headline(traces) {
  if (traces.some(({ done, stopped }) => !done || stopped)) {
    const all = traces.every(({ done, stopped }) => !done && !stopped);
    const state = ({ done, stopped }) => (stopped ? " (stopped)" : done || all ? "" : " so far");
    const counts = traces.map((one) => `${thousands(one.passes)}${state(one)}`);
    return [`Passes${all ? " so far" : ""}: ${listed(counts)}`, listed(traces.map((one) => one.name))];
  }
  const ranked = [...traces].sort((a, b) => a.positions - b.positions);
  const [few, many] = [ranked[0], ranked[ranked.length - 1]];
  const costs = ({ passes, positions }) => `${count(passes, "pass", "passes")} and ${thousands(positions)} positions`;
  const same = few.passes === many.passes && few.positions === many.positions;
  const big = same
    ? `${costs(few)}, all of them`
    : `${costs(few)} instead of ${thousands(many.passes)} and ${thousands(many.positions)}`;
  if (ranked.length > 2) return [big, ranked.map((one) => costsOf(one, ranked, costs(one))).join("\n")];
  const judged = [few, many].map(({ verdict }) => verdict).filter(Boolean);
  const answers = judged.length < 2 ? "" : judged[0] === judged[1]
    ? ` Both answers are ${judged[0]}.`
    : ` The first answer is ${judged[0]}, the other one ${judged[1]}.`;
  const [one, other] = [nameOf(few, ranked), nameOf(many, ranked)];
  return [big, `${one} ${same ? "and" : "instead of"} ${other}.${answers}`];
}

function costsOf(one, all, costs) {
  return `${nameOf(one, all)}: ${costs}${one.verdict ? `, ${one.verdict}` : ""}`;
}

/** Texts as a list in a sentence. */
function listed(texts) {
  return texts.length < 2 ? texts.join("") : `${texts.slice(0, -1).join(", ")} and ${texts[texts.length - 1]}`;
}

/** The name of a trace; with what is set, if another one has the same name or draws its tokens in another way. */
function nameOf(trace, all) {
  const drawn = ({ options, seed }) => String([options.temperature, options.top_p, options.top_k, options.temperature > 0 && seed]);
  const alone = all.every((other) => other === trace || (trace.name !== other.name && drawn(trace) === drawn(other)));
  return alone || !settingsOf(trace).length ? trace.name : `${trace.name} (${settingsOf(trace).join(", ")})`;
}

/** What is set, in words; the seed where it makes a difference. */
function settingsOf({ notes, options, seed }) {
  return options.temperature > 0 && Number.isInteger(seed) ? [...notes, `seed ${seed}`] : notes;
}

function count(n, one, several = `${one}s`) {
  return `${n} ${n === 1 ? one : several}`;
}

function pieceOf(trace, token) {
  if (token === null || token === undefined) return "□";
  if (isStop(trace, token)) return "∎";
  const piece = trace.pieces[token];
  return piece === undefined || piece === "" ? `⟨${token}⟩` : piece;
}

function textOf(trace, tokens, longest = 70) {
  const text = tokens.map((token) => pieceOf(trace, token)).join("").replaceAll("\n", "↵");
  const letters = [...text];
  return letters.length > longest ? letters.slice(0, longest - 1).join("") + "…" : text;
}

/** What was committed and not dropped at once by a stop. */
function committed(trace, k) {
  const { chosen, written } = trace.steps[k];
  const pairs = chosen.map((position, i) => [position - trace.prompt.length, written[i]]);
  const tokens = new Map(pairs.filter(([at]) => at < trace.ends[k + 1]));
  const groups = runs(tokens.keys());
  const parts = groups.slice(0, 6).map(([begin, end]) => {
    const inside = Array.from({ length: end - begin }, (_, i) => tokens.get(begin + i));
    return `“${textOf(trace, inside)}”`;
  });
  const where = groups.length > 1 ? ` in ${groups.length} places` : "";
  const more = groups.length > parts.length ? " and so on." : ".";
  return `${count(tokens.size, "token")} committed${where}: ${parts.join(" ")}${more}`;
}

function sentence(trace, k) {
  const step = trace.steps[k];
  const waiting = step.masks_in_pass.length - step.masks.length;
  const later = waiting ? ` in the block, ${waiting} after it` : "";
  const out = [`Pass ${k + 1}: ${count(step.masks.length, "mask")}${later}.`];
  out.push(step.reason);
  out.push(committed(trace, k));
  const dropped = trace.ends[k] - trace.ends[k + 1];
  if (dropped) out.push(`${count(dropped, "position")} after the stop ${dropped === 1 ? "is" : "are"} dropped.`);
  return out.filter(Boolean).join(" ");
}

function finished(trace) {
  const { passes, tokens } = trace;
  if (trace.stopped) return `Stopped after pass ${passes}: ${count(openAtEnd(trace), "mask")} left.`;
  const end = textOf(trace, tokens.slice(-12));
  return `Finished in pass ${passes}: ${count(tokens.length, "token")}, “${end}” at the end.`;
}

/** What the bars are, and what the lines and marks stand for that the passes have. */
function captionOf(trace) {
  const some = (holds) => trace.steps.some(({ rule }) => rule && holds(rule));
  const confident = trace.measure === "confidence";
  const fades = trace.fade ? `, less ${number(trace.fade)} for every mask before it` : "";
  const out = [confident ? "Confidence: the probability of the best token." : `Margin: the best logit minus the next one${fades}.`];
  if (some(() => true)) out.push("Solid line: the prefix minimum. L′: where the candidate ends.");
  if (trace.level === null && some(() => true)) out.push("lo, hi: the least and the most that it may hold.");
  else if (some(({ hi, n }) => hi < n)) out.push("hi: the most that it may hold.");
  if (some(({ snap }) => snap !== null)) out.push("snap: where its last delimiter ends.");
  if (trace.options.block_length) out.push("Pale: after the block.");
  if (!confident) out.push("Bars with a point go on beyond the axis.");
  return out.join(" ");
}

function describe(trace, cell) {
  const out = [`position ${cell.at + 1}: “${textOf(trace, [cell.token])}”`, STATES[cell.state]];
  if (isDelimiter(trace, cell.token)) out.push("a delimiter");
  if (cell.rank === undefined) return out.join(", ");
  if (cell.unknown) out.push("the model gave no number");
  else out.push(`margin ${number(cell.margin)}`, `probability ${probability(cell.confidence)}`);
  if (!cell.allowed) out.push("after the block");
  return out.join(", ");
}
