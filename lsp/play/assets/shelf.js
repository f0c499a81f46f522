// The runs on the page, side by side. The newest are at the right; more than four are too many to compare.

const MOST_RUNS = 4;

function shelf(box) {
  const views = []; // the controls hold this array, so it stays the same one
  const runs = []; // question and trace of each view

  function add(trace, question) {
    const one = view(trace, true);
    views.push(one);
    runs.push({ trace, question });
    box.append(one.root);
    return one;
  }

  function drop(count) {
    for (const { root } of views.splice(0, count)) root.remove();
    runs.splice(0, count);
  }

  /** The headline if all are of one prompt; and the prompt where the form does not have it. */
  function settle() {
    const section = document.getElementById("prompt-shown");
    const traces = runs.map(({ trace }) => trace);
    const same = traces.every(({ prompt }) => String(prompt) === String(traces[0].prompt));
    section.hidden = !traces.length || !same || runs[0].question !== null;
    if (!section.hidden) showPrompt(section, traces[0]);
    showHeadline(same ? traces : []);
  }

  return {
    views,
    runs,
    settle,
    add,
    clear: () => drop(views.length),
    /** Makes room for so many more. */
    reserve: (count) => drop(Math.max(0, views.length + count - MOST_RUNS)),
    /** Takes away what was stopped. */
    prune() {
      for (let i = runs.length - 1; i >= 0; i -= 1) {
        if (!runs[i].question || !runs[i].trace.stopped) continue;
        views.splice(i, 1)[0].root.remove();
        runs.splice(i, 1);
      }
    },
  };
}
