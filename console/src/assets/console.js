"use strict";
// Everything can be read without this script. It shows times in the reader's zone, keeps pages up
// to date, and has keys and a switch between light and dark.

const zone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function showTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.getTime())) time.textContent = zone.format(at);
  }
}

// Replaces the parts that are marked as live, but none that somebody is typing into.
async function refresh() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok || answer.redirected) return false;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(part.id);
    const active = document.activeElement;
    const typing = part.contains(active) && active.matches("input, select, textarea, button");
    if (!next || typing || part.contains(getSelection().anchorNode) && !getSelection().isCollapsed) continue;
    const open = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
    const href = part.contains(active) ? active.getAttribute("href") : null;
    showTimes(next);
    part.replaceWith(document.adoptNode(next));
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (href) [...next.querySelectorAll("a")].find((link) => link.getAttribute("href") === href)?.focus();
  }
  return true;
}

function concerns(names) {
  return [...document.querySelectorAll("[data-live]")].some(
    (part) => part.dataset.live === "*" || names.includes("*") || names.includes(part.dataset.live),
  );
}

function live() {
  const told = document.getElementById("live");
  if (!document.querySelector("[data-live]") || !told) return;
  const say = (text) => { told.textContent = text; };
  let busy = false;
  const take = async ({ told, names }) => {
    if (told) say(told);
    if (!names || busy || document.hidden || !concerns(names.split(" "))) return;
    busy = true;
    try {
      if (!(await refresh())) say("Not live: load the page again");
    } catch {
      say("Not live: the console does not answer");
    } finally {
      busy = false;
    }
  };
  if (!navigator.locks) {
    // Not over TLS, nor on this machine: browsers keep locks from such pages.
    setInterval(() => take({ told: "Live", names: "*" }), 10000);
    return;
  }
  // A browser has six connections to a host: one tab listens, and tells the others. The lock goes
  // on to the next when its tab is closed.
  const channel = new BroadcastChannel("oncebox");
  channel.onmessage = ({ data }) => take(data);
  say("Live");
  navigator.locks.request("oncebox", () => new Promise(() => {
    const tell = (message) => { channel.postMessage(message); take(message); };
    const events = new EventSource(document.body.dataset.events);
    events.onopen = () => tell({ told: "Live" });
    events.onerror = () => tell({ told: "Not live: the console does not answer" });
    events.onmessage = (event) => tell({ told: "Live", names: event.data });
    addEventListener("pagehide", () => events.close());
  }));
}

function theme() {
  const root = document.documentElement;
  const kept = localStorage.getItem("theme");
  if (kept) root.dataset.theme = kept;
  const button = document.getElementById("theme");
  if (!button) return;
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme ?? (dark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
  });
}

function keys() {
  const places = { d: "/", j: "/jobs", s: "/settings" };
  let before = "";
  addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const box = document.getElementById("q");
    if (event.key === "/" && box) {
      event.preventDefault();
      box.focus();
      box.select();
    } else if (before === "g" && places[event.key]) {
      location.assign(places[event.key]);
    }
    before = event.key;
  });
}

// The box in a table's head chooses all rows of the page, or none.
function chooseAll() {
  for (const all of document.querySelectorAll("input[data-all]")) {
    const boxes = [...all.form.querySelectorAll(`input[name="${all.dataset.all}"]`)];
    all.hidden = false;
    all.addEventListener("change", () => boxes.forEach((box) => { box.checked = all.checked; }));
    all.form.addEventListener("change", () => {
      const chosen = boxes.filter((box) => box.checked).length;
      all.checked = chosen === boxes.length;
      all.indeterminate = chosen > 0 && chosen < boxes.length;
    });
  }
}

theme();
chooseAll();
showTimes(document);
keys();
live();
