// Keeps the list of orders up to date. Asks nothing while the tab is hidden.
const list = document.getElementById("orders");
const every = 1000;
let shown = "";
let timer;

async function refresh() {
  try {
    const answer = await fetch(list.dataset.url);
    const html = await answer.text();
    // Replaced only when it differs, so that a selection or the focus stays where it is.
    if (answer.ok && html !== shown && !document.hidden) {
      list.innerHTML = shown = html;
    }
  } catch {
    // The server is away: the next try may find it.
  }
  schedule();
}

function schedule() {
  clearTimeout(timer);
  if (!document.hidden) {
    timer = setTimeout(refresh, every);
  }
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) {
    refresh();
  }
});
schedule();
