"use strict";
// What the pages do beyond what the server has rendered: they stay up to date, and wait a moment before they change something.
const EVERY = 4000;
const UNDO = 5000;
let held = null;
let timer = 0;
let hiding = 0;

// --- live: fetch the page again and put in what has changed, while the tab can be seen and nobody is at work in it ---

function busy(part) {
  return part.contains(document.activeElement) || part.querySelector("input[name=id]:checked, details[open]") !== null;
}

async function refresh() {
  if (document.hidden || held !== null) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (other !== null && !busy(part) && part.innerHTML !== other.innerHTML) part.replaceChildren(...other.childNodes);
  }
}

function schedule() {
  clearTimeout(timer);
  if (document.hidden || document.querySelector("[data-live]") === null) return;
  timer = setTimeout(() => refresh().catch(() => {}).finally(schedule), EVERY);
}

document.addEventListener("visibilitychange", schedule);
schedule();

// --- undo: a form that changes much is held back for some seconds ---

function toast(text, undo) {
  const box = document.getElementById("toast");
  clearTimeout(hiding);
  box.replaceChildren(document.createTextNode(text));
  box.hidden = false;
  if (undo) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Undo";
    button.addEventListener("click", undo);
    box.append(button);
    button.focus();
  } else {
    hiding = setTimeout(() => { box.hidden = true; }, UNDO);
  }
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.dataset.undo || form.dataset.sent) return;
  const every = form.elements.scope && form.elements.scope.value === "all" && !form.elements.confirmed;
  if (every) return;
  event.preventDefault();
  // Not form.id, which is the boxes of that name.
  if (form.getAttribute("id") === "bulk" && form.querySelector("input[name=id]:checked") === null) {
    toast("No task is ticked.");
    return;
  }
  const act = (form.elements.act && form.elements.act.value) || (event.submitter && event.submitter.textContent) || "change";
  held = setTimeout(() => { form.dataset.sent = "1"; form.requestSubmit(event.submitter); }, UNDO);
  toast(`${act}: ${form.dataset.undo}, in ${UNDO / 1000} seconds`, () => {
    clearTimeout(held);
    held = null;
    toast("Nothing was changed.");
  });
});

// --- tick all ---

document.addEventListener("change", (event) => {
  if (event.target.id !== "every") return;
  for (const box of document.querySelectorAll("input[name=id]")) box.checked = event.target.checked;
});
