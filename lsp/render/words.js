// What happened in a pass, in a sentence.

const STATES = {
  frozen: "in the cache",
  front: "committed, not in the cache yet",
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

function count(n, one) {
  return `${n} ${one}${n === 1 ? "" : "s"}`;
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
  const waiting = step.positions.length - step.masks.length;
  const later = waiting ? ` in the block, ${waiting} after it` : "";
  const out = [`Pass ${k + 1}: ${count(step.masks.length, "mask")}${later}.`];
  out.push(step.rule ? byRule(trace, step) : byChoice(trace, step));
  out.push(committed(trace, k));
  const dropped = trace.ends[k] - trace.ends[k + 1];
  if (dropped) out.push(`${count(dropped, "position")} after the stop ${dropped === 1 ? "is" : "are"} dropped.`);
  return out.filter(Boolean).join(" ");
}

function finished(trace) {
  const { passes, tokens } = trace;
  const end = textOf(trace, tokens.slice(-12));
  return `Finished in pass ${passes}: ${count(tokens.length, "token")}, “${end}” at the end.`;
}

function captionOf(trace) {
  const line = trace.steps.some((step) => step.rule) ? "Solid line: the prefix minimum. " : "";
  const block = trace.options.block_length ? "Pale: after the block. " : "";
  return `${line}${block}${trace.measure === "confidence" ? "" : "Bars with a point go on beyond the axis."}`;
}

function byChoice(trace, step) {
  if (trace.scheduler.startsWith("ScatteredMargin(")) return "Those with the largest margins are taken.";
  if (trace.measure !== "confidence" || trace.level === null) return "";
  const best = Math.max(...step.masks.map((_, j) => step.confidence[j]));
  const level = number(trace.level);
  if (best < Math.fround(trace.level)) return `No confidence reaches ${level}, so the best mask is taken.`;
  return `Those with a confidence of at least ${level} are taken.`;
}

function byRule(trace, step) {
  const floor = number(trace.level);
  const first = step.margins[0];
  if (trace.level !== null && first !== null && first < trace.level) {
    const under = `The first margin ${number(first)} is under the floor ${floor}:`;
    if (trace.islands !== null && step.chosen.some((position) => marginAt(step, position) >= trace.islands)) {
      const islands = count(runs(step.chosen).length, "stable island");
      return `${under} ${islands} of margins of at least ${number(trace.islands)} instead.`;
    }
    if (step.chosen[0] !== step.masks[0]) return `${under} the largest margin instead, as there is no island.`;
    return `${under} forced to commit ${step.rule.length === 1 ? "the first token" : `${step.rule.length} tokens`}.`;
  }
  return [candidate(trace, step.rule), cuts(trace, step)].filter(Boolean).join(", ") + ".";
}

function candidate(trace, rule) {
  const { candidate: length, lo, hi, n, tau } = rule;
  if (trace.level !== null) {
    const end = length === n ? ", all masks" : length === hi ? ", as many as hi allows" : "";
    return `The run of margins at or above the floor ${number(trace.level)} has length ${length} (L′)${end}`;
  }
  const range = `Between lo = ${lo} and hi = ${hi}`;
  const run = `length ${length} (L′)`;
  if (tau !== null) return `${range}, the longest run above a threshold has ${run}, with τ = ${number(tau)}`;
  return length === n ? `${range}: ${run}, all masks` : `${range} no threshold ends a run, so L′ = hi`;
}

function cuts(trace, step) {
  const { candidate: length, snap, window, length: final } = step.rule;
  const stopped = isStop(trace, step.tokens[final - 1]);
  const out = [];
  let target = length;
  if (snap !== null) {
    out.push(snap === length ? "and it ends at a delimiter" : `the last delimiter cuts it to ${snap}`);
    target = snap;
  } else if (window !== null) {
    out.push(`no delimiter within ${window}`);
    if (final < target && !stopped) return [...out, `so the minimum of ${final} remains`].join(", ");
  }
  if (final < target && stopped) out.push(`a stop cuts it to ${final}`);
  if (final > target) out.push(`raised to the minimum of ${final}`);
  const beyond = step.chosen.length - final;
  if (beyond > 0) out.push("and a sure stop further right");
  return out.join(", ");
}

function marginAt(step, position) {
  const margin = step.margins[step.positions.indexOf(position)];
  return margin === null ? Infinity : margin;
}

function describe(trace, cell) {
  const out = [`position ${cell.at + 1}: “${textOf(trace, [cell.token])}”`, STATES[cell.state]];
  if (cell.rank === undefined) return out.join(", ");
  out.push(`margin ${number(cell.margin)}`, `probability ${probability(cell.confidence)}`);
  if (!cell.allowed) out.push("after the block");
  return out.join(", ");
}
