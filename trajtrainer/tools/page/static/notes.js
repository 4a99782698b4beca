// The user's notes about a run: a text, labels, and whether the run is archived.

import { post } from "./api.js";
import { update } from "./state.js";
import { button, html } from "./util.js";

// The text that the user is writing: {run, text, labels, seen, saved}. Data from the server does not overwrite it. `seen` is
// the text on the server when the user started to write, and `saved` is the run's data when the draft was saved.
let draft = null;
let said = { run: null, text: "" };

async function send(run, changes, onSaved) {
  const written = draft;
  said = { run: run.id, text: "" };
  try {
    await post("notes", run.id, changes);
    said.text = "Saved.";
    if ("text" in changes && draft === written) draft = { ...draft, seen: changes.text, saved: run };
  } catch (error) {
    said.text = error.message;
  }
  onSaved();
}

export function notes(run, onSaved) {
  if (draft?.run !== run.id || (draft.saved && draft.saved !== run)) draft = null;
  const { text, labels, seen } = draft ?? { text: run.notes, labels: run.labels.join(", "), seen: run.notes };
  const write = (changes) => {
    draft = { run: run.id, text, labels, seen, ...draft, ...changes, saved: null };
    said.text = "";
    update({});
  };
  const save = () => send(run, { text, seen, labels: labels.split(",").map((each) => each.trim()).filter(Boolean) }, onSaved);
  return html`<section class="card notes" aria-label="Notes"><h3>Notes</h3>
    <textarea rows="3" maxlength="20000" placeholder="What did you try, and what came of it?" aria-label="Note" value=${text}
      oninput=${(event) => write({ text: event.currentTarget.value })} />
    <label class="row">Labels<input type="text" placeholder="baseline, paper" aria-label="Labels, separated by commas" value=${labels}
      oninput=${(event) => write({ labels: event.currentTarget.value })} /></label>
    <div class="row"><button type="button" class="plain" disabled=${!draft || draft.saved !== null} onclick=${save}>Save note</button>
      ${button("plain", run.archived ? "Take out of the archive" : "Archive", () => send(run, { archived: !run.archived }, onSaved))}
      <span class="soft small" role="status">${said.run === run.id && said.text}</span></div></section>`;
}
