// The playground: it asks for runs, shows each pass as soon as it is there, and saves and opens what it shows.

function start() {
  const about = JSON.parse(document.getElementById("data").textContent);
  const ids = ["run", "again", "stop", "status", "save", "files", "traces"];
  const [run, again, stop, status, save, files, traces] = ids.map((id) => document.getElementById(id));
  const asked = form(about);
  const shown = shelf(traces);
  let running = null; // what stops the run
  let linked = linkedPart(); // the question that the address holds, as it stands there
  let offered = null; // that question, until something is decoded
  const controls = control(shown.views, () => running !== null);
  document.getElementById("about").textContent = `${about.model} on ${about.device}, on this machine alone`;
  document.getElementById("pace").value = "250";

  const say = (text, kind = "") => {
    setText(status, text);
    status.className = kind;
  };
  const trying = (work) => async (...given) => {
    try {
      await work(...given);
    } catch (error) {
      say(error.message, "error");
    }
  };

  /** Decodes what is asked for; with `beside` older runs stay. Returns whether all of it is shown: nobody has stopped it. */
  async function decode(question, beside) {
    stopped();
    const mine = (running = new AbortController());
    const fresh = [];
    const heard = (event) => {
      if (running !== mine) return;
      if (event.event === "place") return say(placeOf(event.ahead));
      const trace = fresh[event.side];
      if (event.event === "begin") {
        if (event.side === 0) shown.makeRoom(beside ? question.sides.length : MOST_RUNS); // it was not refused
        fresh[event.side] = begin(event.head);
        shown.add(fresh[event.side], { ...question, sides: [question.sides[event.side]] });
        say("running");
      } else if (event.event === "pass") take(trace, event);
      else finish(trace, event.head);
      changed(event.event);
    };
    busy();
    try {
      await listen("/api/runs", question, mine.signal, heard);
      if (running === mine) say("finished");
    } catch (error) {
      if (running === mine) say(error.message, "error");
    }
    if (running !== mine) return false;
    ended();
    return fresh.length > 0 && fresh.every(({ stopped }) => !stopped);
  }

  /** Nothing more comes: what has not ended by itself was stopped. */
  function ended() {
    running = null;
    for (const { trace } of shown.runs) if (!trace.done) halt(trace);
    busy();
    shown.settle();
    controls.grow();
  }

  /** A new pass: the view follows when it plays, at its own pace. */
  let frame = null;
  function changed(kind) {
    if (kind === "begin") {
      busy();
      shown.settle();
      controls.go(1);
      controls.playing(true);
    }
    frame ??= requestAnimationFrame(() => {
      frame = null;
      controls.grow();
      shown.settle();
    });
  }

  function stopped() {
    if (!running) return;
    running.abort();
    say("stopped");
    ended();
  }

  function busy() {
    allow(stop, running !== null);
    allow(again, running === null && shown.runs.length > 0);
    controls.hush();
    document.body.classList.toggle("empty", !shown.runs.length);
    save.hidden = !shown.runs.some(({ trace }) => trace.done);
  }

  /** Only the sides whose parameters are others than in the runs that are shown; all, if none is. */
  function news(question) {
    const key = (one, side) => JSON.stringify([{ ...one, sides: null }, side]);
    const whole = shown.runs.filter(({ trace }) => !trace.stopped);
    const known = new Set(whole.map((one) => key(one.question ?? {}, one.question?.sides[0])));
    const sides = question.sides.filter((side) => !known.has(key(question, side)));
    return { ...question, sides: sides.length ? sides : question.sides };
  }

  let writing = 0; // pictures can take long, and another file may be asked for meanwhile

  async function write(kind) {
    const done = shown.runs.map(({ trace }) => trace).filter((trace) => trace.done);
    const given = done.map((trace) => ({ ...headOf(trace), steps: trace.lines }));
    const pass = Math.max(1, controls.at);
    writing += 1;
    say("writing");
    try {
      for (const [i, group] of (kind === "jsonl" ? given.map((one) => [one]) : [given]).entries()) {
        const answer = await ask("/api/save", { kind, pass, traces: group });
        const name = kind === "jsonl" && given.length > 1 ? `run.${i + 1}.jsonl` : `run.${kind}`;
        download(await answer.blob(), name);
      }
    } finally {
      writing -= 1;
    }
    say(writing ? "writing" : "saved");
  }

  /** What is shown as one question, which a link can hold. */
  function shownQuestion() {
    const questions = shown.runs.map(({ question }) => question);
    const same = new Set(questions.map((one) => JSON.stringify({ ...one, sides: null }))).size === 1;
    if (questions.includes(null) || !same) {
      throw new Error("A link holds runs that were decoded here from one prompt; save the page instead");
    }
    return { ...questions[0], sides: questions.flatMap(({ sides }) => sides) };
  }

  /** The address holds what is shown and nothing older. */
  function address(parts) {
    history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : location.pathname);
    linked = linkedPart();
  }

  async function copyLink() {
    address([`pass=${controls.at}`, `run=${encodeURIComponent(JSON.stringify(shownQuestion()))}`]);
    await navigator.clipboard.writeText(location.href).then(() => say("copied"), () => say("the link is in the address"));
  }

  async function reopen() {
    const given = await Promise.all([...files.files].map(async (file) => ({ name: file.name, text: await file.text() })));
    files.value = "";
    if (!given.length) return;
    const found = await (await ask("/api/open", { files: given })).json();
    stopped();
    address([]);
    shown.clear();
    for (const { steps, ...head } of found) shown.add(replay(head, steps), null);
    shown.settle();
    controls.go(1);
    busy();
    say(`opened ${count(found.length, "trace")}`);
  }

  const fields = document.getElementById("form");
  fields.addEventListener("submit", async (event) => {
    event.preventDefault();
    document.querySelector(".go").scrollIntoView();
    const { question, pass } = taken();
    address([]);
    if (!(await decode(question, false)) || !pass) return;
    controls.playing(false);
    controls.go(pass);
  });
  fields.addEventListener("invalid", () => status.className === "error" && say(""), true); // an older one: the browser tells
  again.addEventListener("click", () => {
    if (!fields.reportValidity()) return;
    address([]);
    decode(news(asked.question), true);
  });
  stop.addEventListener("click", stopped);
  save.addEventListener("click", trying(async (event) => {
    const { kind } = event.target.dataset;
    if (kind) await write(kind);
  }));
  document.getElementById("link").addEventListener("click", trying(copyLink));
  document.getElementById("open").addEventListener("click", () => files.click());
  files.addEventListener("change", trying(reopen));
  document.getElementById("hole").addEventListener("click", trying(asked.makeHole));
  document.getElementById("prompt").addEventListener("input", asked.changed);
  for (const id of ["task", "index"]) document.getElementById(id).addEventListener("change", trying(asked.takeProblem));
  window.addEventListener("pagehide", () => running?.abort());
  window.addEventListener("hashchange", () => {
    if (linkedPart() && linkedPart() !== linked) location.reload(); // a link was opened on this page
  });

  /** What a link holds is decoded after a click alone: anybody can lead a browser to this page. */
  function offer(question) {
    asked.question = question;
    offered = { question, pass: controls.fromAddress() ?? 1, form: JSON.stringify(asked.question) };
    run.focus();
    say(`This link holds ${count(question.sides.length, "run")}: press Run`);
  }

  /** The question to be decoded: that of the link, if nothing was changed in the form since, else that of the form. */
  function taken() {
    const question = asked.question;
    const link = offered?.form === JSON.stringify(question) ? offered : { question };
    offered = null;
    return link;
  }

  async function beginning() {
    asked.question = { ...about.first, sides: about.first.sides.map((scheduler) => ({ scheduler })) };
    const question = linked && questionOf(linked);
    if (!question) await asked.takeProblem();
    if (!linked) return;
    if (!question) throw new Error("Invalid link: expected a question as this page writes it, got something else");
    offer(question);
  }

  trying(beginning)();
}

/** What the address has of a question. */
function linkedPart() {
  return /(?:^#|&)run=([^&]+)/.exec(location.hash)?.[1] ?? null;
}

/** The question of a link, or null if it holds none. */
function questionOf(part) {
  try {
    const given = JSON.parse(decodeURIComponent(part));
    return Array.isArray(given.sides) ? given : null;
  } catch {
    return null;
  }
}

function placeOf(ahead) {
  return ahead ? `in line: ${count(ahead, "run")} before this one` : "starting";
}

/** The news of a pass, and what the run has cost by then. */
function take(trace, { line, pieces, delimiters, stops, passes, positions, seconds }) {
  Object.assign(trace.pieces, pieces);
  trace.delimiters.push(...delimiters);
  trace.stops.push(...stops);
  advance(trace, line);
  trace.costs.push({ positions, seconds });
  Object.assign(trace, { passes, positions });
}

/** The run was stopped: masks that are left have the token -1, and the pass that did not come. */
function halt(trace) {
  trace.stopped = true;
  if (!trace.steps.length) return;
  const { pieces, passes, positions } = trace;
  const [delimiters, stops] = [trace.delimiters, trace.stops].map((ids) => [...ids].sort((one, other) => one - other));
  const end = trace.ends[passes];
  const tokens = trace.tokenOf.slice(0, end).map((token) => token ?? -1);
  const committed_in = trace.passOf.slice(0, end).map((pass) => Math.min(pass, passes));
  const known = { pieces, delimiters, stops, passes, positions, tokens, committed_in };
  finish(trace, { ...trace.head, ...known, text: null, finished: false });
}

/** What concerns the whole, as the file has it. */
function headOf({ head }) {
  const { given, ...out } = head;
  return out;
}

start();
