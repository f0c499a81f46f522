// Questions to the server. An answer is an object, or a stream of events (server-sent events).

async function ask(path, question, signal) {
  const body = JSON.stringify(question);
  const headers = { "content-type": "application/json" };
  const answer = await fetch(path, question ? { method: "POST", body, headers, signal } : { signal });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  throw new Error(said?.error || `The server answers with ${answer.status}`);
}

/** Calls a function with every event, until the last one. */
async function listen(path, question, signal, heard) {
  const answer = await ask(path, question, signal);
  const lines = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await lines.read();
    if (done) throw new Error("The server has ended the run");
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const event = JSON.parse(part.replace(/^data: /, ""));
      if (event.event === "error") throw new Error(event.error);
      if (event.event === "done") return;
      heard(event);
    }
  }
}

function download(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
