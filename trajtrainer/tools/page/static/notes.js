// What people write about a run: a note, labels, and whether it is archived.

import { annotate } from "./api.js";
import { el } from "./util.js";

export class Notes {
  #run = null;
  #text = ""; // as the server has it, or had it when the user began to write
  #isDirty = false;

  constructor(onSaved) {
    this.onSaved = onSaved;
    this.text = el("textarea", { rows: 3, maxlength: 20000, placeholder: "What did you try, and what came of it?", "aria-label": "Note",
      oninput: () => this.#touch() });
    this.labels = el("input", { type: "text", placeholder: "baseline, paper", "aria-label": "Labels, separated by commas", oninput: () => this.#touch() });
    this.save = el("button", { type: "button", class: "plain", disabled: true, onclick: () => this.#save() }, "Save note");
    this.archive = el("button", { type: "button", class: "plain", onclick: () => this.#send({ archived: !this.#run.archived }) });
    this.status = el("span", { class: "soft small", role: "status" });
    this.element = el("section", { class: "card notes", "aria-label": "Notes" },
      el("h3", {}, "Notes"), this.text, el("label", { class: "row" }, "Labels", this.labels), el("div", { class: "row" }, this.save, this.archive, this.status));
  }

  // What someone is writing stays, whatever the server sends.
  show(run) {
    if (this.#run?.id !== run.id) { this.#isDirty = false; this.status.textContent = ""; }
    this.#run = run;
    this.archive.textContent = run.archived ? "Take out of the archive" : "Archive";
    if (this.#isDirty) return;
    this.#text = run.notes;
    const labels = run.labels.join(", ");
    if (this.text.value !== run.notes) this.text.value = run.notes;
    if (this.labels.value !== labels) this.labels.value = labels;
    this.save.disabled = true;
  }

  #touch() {
    this.#isDirty = true;
    this.save.disabled = false;
    this.status.textContent = "";
  }

  async #save() {
    const labels = this.labels.value.split(",").map((each) => each.trim()).filter(Boolean);
    if (await this.#send({ text: this.text.value, seen: this.#text, labels })) this.#isDirty = false;
    this.onSaved();
  }

  async #send(changes) {
    const id = this.#run.id;
    try {
      await annotate(id, changes);
    } catch (error) {
      this.status.textContent = error.message;
      return false;
    }
    if (this.#run.id === id) this.status.textContent = "Saved.";
    this.onSaved();
    return true;
  }
}
