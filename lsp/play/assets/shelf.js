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

  /** The headline, and the prompt where the form does not have it. */
  function settle() {
    const section = document.getElementById("prompt-shown");
    const traces = runs.map(({ trace }) => trace);
    section.hidden = !traces.length || !ofOnePrompt(traces) || runs[0].question !== null;
    if (!section.hidden) showPrompt(section, traces[0]);
    showHeadline(traces);
  }

  return {
    views,
    runs,
    settle,
    add,
    clear: () => drop(views.length),
    /** Makes room for so many more: what was stopped goes first, then the oldest. */
    makeRoom(count) {
      for (let i = runs.length - 1; i >= 0; i -= 1) {
        if (!runs[i].question || !runs[i].trace.stopped) continue;
        views.splice(i, 1)[0].root.remove();
        runs.splice(i, 1);
      }
      drop(Math.max(0, views.length + count - MOST_RUNS));
    },
  };
}
