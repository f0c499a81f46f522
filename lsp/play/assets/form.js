// What the page asks for: the prompt, and a scheduler with its parameters for each side.

const SIDES = ["Left", "Right"];

function form(about) {
  const ids = ["task", "index", "prompt", "length", "temperature", "seed", "chat", "sides"];
  const [task, index, prompt, length, temperature, seed, chat, sides] = ids.map((id) => document.getElementById(id));
  const each = SIDES.map((name, i) => sideOf(about, name, about.first.sides[i]));
  sides.append(...each.map(({ root }) => root));
  prompt.maxLength = about.limits.prompt;
  length.max = about.limits.answer;
  length.placeholder = about.length;
  index.max = about.problems - 1;
  chat.checked = about.chat;
  task.append(new Option("my own", ""), ...about.tasks.map((name) => new Option(name)));
  for (const node of document.querySelectorAll("[data-is=task]")) node.hidden = !about.tasks.length;

  let given = ""; // the prompt of the problem that was taken

  let latest = 0; // answers to older questions come too late

  async function takeProblem() {
    fits();
    const mine = (latest += 1);
    if (!task.value || !index.checkValidity()) return;
    const before = prompt.value;
    const answer = await ask(`/api/problem?task=${encodeURIComponent(task.value)}&index=${Number(index.value)}`);
    const problem = await answer.json();
    if (mine !== latest) return;
    if (prompt.value !== before) return own(); // somebody has typed meanwhile
    prompt.value = given = problem.prompt.trimEnd();
    length.placeholder = problem.length;
    fits();
  }

  /** A prompt with holes is continued as it is: a template would put it somewhere else. */
  function fits() {
    const holes = /<mask:\d+>/.test(prompt.value);
    chat.disabled = holes;
    index.parentElement.hidden = !task.value;
    if (holes) length.placeholder = 0;
    else if (!task.value || length.placeholder === "0") length.placeholder = about.length;
  }

  async function makeHole() {
    const [from, to] = [prompt.selectionStart, prompt.selectionEnd];
    if (from === to) throw new Error("Select the words of the prompt that are to be filled, then press this button");
    const before = prompt.value;
    const answer = await ask("/api/tokens", { text: before.slice(from, to) });
    const { tokens } = await answer.json();
    if (prompt.value !== before) throw new Error("The prompt was changed meanwhile: select the words once more");
    prompt.setRangeText(`<mask:${Math.max(1, tokens)}>`, from, to, "end");
    prompt.focus();
    changed();
  }

  /** A problem that was changed is one's own. */
  function changed() {
    if (task.value && given && prompt.value.trim() !== given.trim()) own();
    else fits();
  }

  function own() {
    task.value = "";
    fits();
  }

  const optional = (node) => (node.value === "" ? null : Number(node.value));

  return {
    takeProblem,
    makeHole,
    get question() {
      return {
        prompt: prompt.value,
        ...(task.value ? { task: task.value, index: Number(index.value) } : {}),
        max_new_tokens: optional(length),
        temperature: optional(temperature),
        seed: optional(seed),
        chat: chat.checked,
        sides: each.map((side) => side.value),
      };
    },
    set question(asked) {
      latest += 1;
      task.value = about.tasks.includes(asked.task) ? asked.task : "";
      index.value = asked.index ?? 0;
      prompt.value = given = asked.prompt ?? "";
      length.value = asked.max_new_tokens ?? "";
      temperature.value = asked.temperature ?? 0;
      seed.value = asked.seed ?? 0;
      chat.checked = asked.chat ?? about.chat;
      each.forEach((side, i) => (side.value = asked.sides?.[i] ?? { scheduler: about.first.sides[i] }));
      fits();
    },
    changed,
  };
}

/** The choice of a scheduler, its parameters, and the options of the loop. What is empty has its default. */
function sideOf(about, name, first) {
  const root = document.getElementById("side").content.firstElementChild.cloneNode(true);
  const [settings, options] = root.querySelectorAll(".settings");
  const choice = root.querySelector(".scheduler");
  root.querySelector("legend").textContent = name;
  choice.append(...about.schedulers.map((one) => new Option(one.name, one.key)));
  choice.addEventListener("change", () => show());

  function show() {
    const one = about.schedulers.find(({ key }) => key === choice.value);
    root.querySelector(".about").textContent = one.about;
    settings.replaceChildren(...inputs(one.settings));
    options.replaceChildren(...inputs(one.options));
  }

  function inputs(defaults) {
    return Object.entries(defaults).map(([key, usual]) => {
      const label = make("label", "", `${key.replaceAll("_", " ")} `);
      const input = Object.assign(make("input"), { type: "text", name: key, placeholder: usual, maxLength: 200 });
      label.append(input);
      return label;
    });
  }

  const read = (box) => Object.fromEntries(
    [...box.querySelectorAll("input")].filter(({ value }) => value.trim()).map(({ name: key, value }) => [key, value.trim()]),
  );

  function write(box, values) {
    for (const input of box.querySelectorAll("input")) input.value = values?.[input.name] ?? "";
  }

  const out = {
    root,
    get value() {
      return { scheduler: choice.value, settings: read(settings), options: read(options) };
    },
    set value(given) {
      const known = about.schedulers.some(({ key }) => key === given.scheduler);
      choice.value = known ? given.scheduler : first;
      show();
      write(settings, given.settings);
      write(options, given.options);
      root.querySelector("details").open = Object.keys(given.options || {}).length > 0;
    },
  };
  out.value = { scheduler: first };
  return out;
}
