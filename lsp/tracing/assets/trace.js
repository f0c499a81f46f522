// The page of saved traces.

function start() {
  const traces = JSON.parse(document.getElementById("data").textContent).map(({ steps, ...head }) => replay(head, steps));
  const together = ofOnePrompt(traces);
  if (together) showPrompt(document.getElementById("prompt"), traces[0]);
  showHeadline(traces);
  const views = traces.map((trace) => view(trace, together));
  document.getElementById("traces").append(...views.map(({ root }) => root));
  const controls = control(views);
  controls.go(controls.fromAddress() ?? 1);
}

start();
